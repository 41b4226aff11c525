"""Text from jobs and guests: printable in output, and without unit file syntax for PID 1."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solo5_systemd.base.sanitize import bounded, is_plain_path, name_for_unit, printable, unit_file_syntax


@pytest.mark.parametrize(
    "text, shown",
    [
        ("grüße 磁盘 \t", "grüße 磁盘 \\x09"),
        ("\x1b[2J\x9b\x00", "\\x1b[2J\\x9b\\x00"),
        ("\u202e\u2028\U000e0001", "\\u202e\\u2028\\U000e0001"),
        ("\udc80\ud800", "\\x80\\ud800"),
    ],
)
def test_what_could_steer_a_terminal_becomes_an_escape(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text(), st.integers(1, 50))
def test_bounded_text_is_printable_and_no_longer(text: str, most: int) -> None:
    shown = bounded(text, most)
    assert shown.isprintable()
    assert len(shown) <= most
    assert shown == printable(text) or shown.endswith("…")


@given(st.text())
def test_a_name_for_a_unit_is_one_line_that_a_unit_file_gives_back(text: str) -> None:
    name = name_for_unit(text)
    assert unit_file_syntax(name) == ""
    assert name == name.strip()
    assert name.isprintable()


@pytest.mark.parametrize("char", ["\0", "\n", "\r", "\t", "\x1b", "\x7f", "\x85", "\u2028", "\u2029", "\udcff"])
def test_a_character_that_a_unit_file_reads_as_structure_is_found(char: str) -> None:
    assert unit_file_syntax(f"a{char}b").startswith("the character \\")
    assert unit_file_syntax(f"a{char}b").isprintable()


def test_a_backslash_at_the_end_is_found_and_no_other() -> None:
    assert unit_file_syntax("a\\") == "a backslash at its end"
    assert unit_file_syntax("a\\b é 磁 \" ' : % $ ;") == ""


@pytest.mark.parametrize("path", ["/a b", "/a:b", '/a"b', "/a'b", "/a\\b", "/a\tb"])
def test_a_path_that_bind_paths_would_take_apart_is_not_bare(path: str) -> None:
    assert not is_plain_path(path)
    assert is_plain_path("/srv/%n$HOME;#=é磁盘")
