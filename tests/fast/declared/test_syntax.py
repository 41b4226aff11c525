"""Unit file syntax and specifiers: what is read, what is refused, and where an error is."""

from collections.abc import Mapping

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from solo5_systemd.base.errors import SettingsError
from solo5_systemd.declared.syntax import FILE_MAX_BYTES, Source, expand, parse_file, specifiers, split_words


def parsed(content: bytes | str) -> list[tuple[str, str, str, int]]:
    raw = content.encode() if isinstance(content, str) else content
    return [(each.section, each.key, each.value, each.line) for each in parse_file(Source(path="/f", content=raw))]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("[A]\nk=v", [("A", "k", "v", 2)]),
        (b"\xef\xbb\xbf[A]\r\nk=v\r\n", [("A", "k", "v", 2)]),
        ("# c\n; c\n\n  [A]  \n\tk \t= v w \t\n#k=x", [("A", "k", "v w", 5)]),
        ("[A]\nk=\nk=a=b", [("A", "k", "", 2), ("A", "k", "a=b", 3)]),
        ("[A]\nk=1\n[B]\nk=2\n[A]\nk=3", [("A", "k", "1", 2), ("B", "k", "2", 4), ("A", "k", "3", 6)]),
        ("[A]\nk=a\\\n# comment\n; too\n  b\\\n\tc\nl=d", [("A", "k", "a   b \tc", 2), ("A", "l", "d", 7)]),
        ("[A]\nk=a\\\\\nl=b", [("A", "k", "a\\\\", 2), ("A", "l", "b", 3)]),
        ("[A]\nk=a\\\n\nl=b", [("A", "k", "a", 2), ("A", "l", "b", 4)]),
        ("[A]\nk=a # no comment", [("A", "k", "a # no comment", 2)]),
        ("[X-Other]\nk=v\n[A]\nX-k=v\nk=v", [("A", "k", "v", 5)]),
        ("", []),
    ],
)
def test_a_file_is_read_as_by_systemd(content: bytes | str, expected: list[tuple[str, str, str, int]]) -> None:
    assert parsed(content) == expected


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"[A]\nk=\xff\n", "/f:2: the line is not UTF-8"),
        (b"[A]\nk=a\0b", "/f:2: the line has the control character U[+]0000"),
        (b"[A]\nk=a\rExecStart=b", "/f:2: the line has the control character U[+]000D"),
        ("[A]\nk=a\u2028b", "/f:2: the line has the control character U[+]2028"),
        ("k=v\n[A]", "/f:1: the line is before any section"),
        ("[A]\n\nk", "/f:3: the line is not an assignment"),
        ("[A]\n=v", "/f:2: the line is not an assignment"),
        ("[A\nk=v", "/f:1: the line is not a section"),
        ("[]", "/f:1: the line is not a section"),
        ("[[A]]", "/f:1: .* is not a section"),
        ("[A]\nk=a\\", "/f:2: the line ends in a backslash at the end of the file"),
        ("[A]\nk=a\\ \nExecStart=/bin/sh", "/f:2: the value of k= ends in a backslash"),
        (b" " * (FILE_MAX_BYTES + 1), "/f is larger than 1048576 bytes"),
    ],
)
def test_a_line_that_systemd_would_skip_is_refused_with_its_place(content: bytes | str, sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        parsed(content)


@example(b"[Unikernel]\nImage=/srv/web.hvt\n")
@given(st.binary(max_size=200))
def test_any_bytes_are_assignments_or_one_sentence(content: bytes) -> None:
    found: list[tuple[str, str, str, int]] = []
    try:
        found = parsed(content)
    except SettingsError as error:
        assert error.sentence.startswith("/f")  # noqa: PT017 - either is right
    for section, key, value, _ in found:
        # Copied to a unit file, the line is what it was, and so is the next one.
        copy = parsed(f"[{section}]\n{key}={value}\n[Z]\na=b")
        assert [each[:3] for each in copy] == [(section, key, value), ("Z", "a", "b")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ()),
        ("a  b\tc ", ("a", "b", "c")),
        ('"a b" \'c d\' ""', ("a b", "c d", "")),
        ('--name="a b"c', ("--name=a bc",)),
        ('"it\'s" \'say "x"\'', ("it's", 'say "x"')),
        (r"a\sb \x41\101 \u00e9 \U0001F600 \\ \" \'", ("a b", "AA", "é", "😀", "\\", '"', "'")),
        (r"\xc3\xa9 \n\t", ("é", "\n\t")),
        ("{mirage} --ipv4={net.service.ipv4_cidr}", ("{mirage}", "--ipv4={net.service.ipv4_cidr}")),
    ],
)
def test_words_are_split_as_by_systemd(text: str, words: tuple[str, ...]) -> None:
    assert split_words(text) == words


@pytest.mark.parametrize(
    "text", ["'a", 'a"b', r"\q", "\\", r"\x4", r"\x00", r"\u12", r"\ud800", r"\U00110000", r"\400"]
)
def test_an_unknown_escape_or_open_quote_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        split_words(text)
    with pytest.raises(ValueError, match="not UTF-8"):
        split_words(r"\xff")


@given(st.text(max_size=50))
def test_any_text_is_words_or_a_reason(text: str) -> None:
    try:
        words = split_words(text.encode("utf-8", "ignore").decode())
    except ValueError as error:
        assert "expected" in str(error)  # noqa: PT017 - either is right
    else:
        assert all("\0" not in word or "\0" in text for word in words)


HOST = {"H": "web1.example.org", "l": "web1", "m": "f" * 32, "b": "e" * 32, "v": "6.1.0", "a": "arm64"}


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("%n %N %p %P %j %J %i %I %f", "a-b@c-d.service a-b@c-d a-b a/b b b c-d c/d /c/d"),
        ("%H %l %m %b %v %a", f"web1.example.org web1 {'f' * 32} {'e' * 32} 6.1.0 arm64"),
        ("%S/%C/%E/%L/%t/%T/%V", "/var/lib//var/cache//etc//var/log//run//tmp//var/tmp"),
        ("100%% %%i {x}", "100% %i {x}"),
    ],
)
def test_a_specifier_has_systemds_meaning(text: str, expanded: str) -> None:
    assert expand(text, specifiers("a-b@c-d", HOST)) == expanded
    assert expand("%f %n", specifiers("web", HOST)) == "/web web.service"


UNKNOWN = [(text, HOST, "unknown specifier .* %% is a percent sign") for text in ("%u", "%h", "%d", "%", "50% x", "%é")]


@pytest.mark.parametrize(
    ("text", "host", "words"),
    [*UNKNOWN, ("%i", HOST, "empty here"), ("%I", HOST, "empty here"), ("%m", {}, "empty here")],
)
def test_an_unknown_specifier_or_one_without_a_value_is_refused(text: str, host: Mapping[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        expand(text, specifiers("web", host))
