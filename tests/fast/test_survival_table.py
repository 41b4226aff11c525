"""docs/survival.md says what survives what; each row names the tests that show it, and these are there."""

import re

import pytest
from tests.support.doc_tables import DOCS, missing

TABLE = (DOCS / "survival.md").read_text()
ROWS = {
    row[1].strip(): row[2] for row in re.finditer(r"^\| ([^-|][^|]*)\|(?:[^|]*\|){5}([^|]*)\|$", TABLE, re.MULTILINE)
}
HEAD = "what dies"


def test_there_is_a_table() -> None:
    assert HEAD in ROWS
    assert len(ROWS) > 15


@pytest.mark.parametrize("row", sorted(ROWS.keys() - {HEAD}))
def test_every_test_that_a_row_names_is_there(row: str) -> None:
    assert missing(ROWS[row]) == []


def test_a_name_that_is_no_test_is_found() -> None:
    assert missing("`machine/test_survival.py::test_nobody_wrote_this`") == [
        "machine/test_survival.py::test_nobody_wrote_this"
    ]
    assert missing("a test, surely") != []
    assert missing("`not a test`") != []
