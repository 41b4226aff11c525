"""Values as text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solo5_systemd.cli import render


def test_columns_and_colons_are_aligned_and_a_cell_cannot_break_its_line() -> None:
    assert render.table(("NAME", "N"), [("a", "1"), ("longer", "")]) == "NAME    N\na       1\nlonger  -\n"
    assert render.table(("NAME", "PORTS"), []) == "NAME  PORTS\n"
    painted = render.table(("A", "B"), [("x", "y")], {"A": "<{}>".format})
    assert painted == "A  B\n<x>  y\n"
    assert render.table(("A",), [("x\n\x1b[2J",)]) == "A\nx\\x0a\\x1b[2J\n"
    assert render.fields([("Unit", "a"), ("Name", ""), ("X", "b")]) == "Unit: a\nName: -\n   X: b\n"


@given(line=st.binary())
def test_no_line_of_a_console_reaches_a_terminal_with_a_control_character(line: bytes) -> None:
    shown = render.visible_line(line).decode()
    assert shown.replace("\t", "").isprintable()


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0"), (1023, "1023"), (1024, "1K"), (128 << 20, "128M"), (3 << 29, "1.5G"), (5 << 40, "5T")]
)
def test_sizes(count: int, text: str) -> None:
    assert render.size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "less than a second"),
        (0.9, "less than a second"),
        (1, "1 second"),
        (59.9, "59 seconds"),
        (60, "1 minute"),
        (7199, "1 hour"),
        (86_400 * 6, "6 days"),
        (86_400 * 8, "1 week"),
        (86_400 * 800, "2 years"),
    ],
)
def test_spans(seconds: float, text: str) -> None:
    assert render.span(seconds) == text
