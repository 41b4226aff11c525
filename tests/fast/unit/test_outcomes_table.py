"""docs/outcomes.md has a row for each outcome, and the tests in it exist."""

import re

import pytest
from tests.support.doc_tables import DOCS, TESTS, names

from solo5_systemd.unit.outcome import Ending

TEXT = (DOCS / "outcomes.md").read_text()
ROWS = {row[1]: row[0] for row in re.finditer(r"^\| `([a-z-]+)` \|.*\|$", TEXT, re.MULTILINE)}
COLUMNS = "name when sentence hvt spt code message solo5ctl retry tests".split()
FILES = dict(re.findall(r"\b([A-Z])\s`tests/(machine/[\w/.]+)`", TEXT))


def test_every_ending_has_its_row_in_the_order_of_the_code() -> None:
    assert list(ROWS) == list(Ending)


def named(text: str) -> list[tuple[str, str]]:
    """Return the tests that a text names, each with the letter of its file; the letter may be at the end of a line."""
    return re.findall(rf"\b([{''.join(FILES)}])\s+`(\w+)`", text)


@pytest.mark.parametrize("ending", Ending)
def test_every_row_names_tests(ending: Ending) -> None:
    assert named(ROWS[ending.value])


def test_every_test_that_is_named_is_there() -> None:
    assert [name for file, name in named(TEXT) if f"test_{name}" not in names(TESTS / FILES[file])] == []


@pytest.mark.parametrize("ending", Ending)
def test_every_row_is_complete(ending: Ending) -> None:
    assert ROWS[ending.value].count("|") == len(COLUMNS) + 1
