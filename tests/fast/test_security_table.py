"""docs/security.md says what stops which attack; each row names the test that performs it, and that is there."""

import re

import pytest
from tests.support.doc_tables import DOCS, missing

TABLE = (DOCS / "security.md").read_text().partition("## What stops what")[2].partition("\n## ")[0]
ROWS = {row[1].strip(): row[2] for row in re.finditer(r"^\| ([^-|][^|]*)\|[^|]*\|([^|]*)\|$", TABLE, re.MULTILINE)}
HEAD = "attacker → asset"
ATTACKERS = ("job", "image", "guest", "tender", "neighbour", "local user", "LAN client")


def test_there_is_a_row_for_every_attacker() -> None:
    assert HEAD in ROWS
    assert [each for each in ATTACKERS if not any(row.startswith(f"{each} ") for row in ROWS)] == []


def test_every_line_of_the_table_is_a_row() -> None:
    assert TABLE.count("\n| ") == len(ROWS)


@pytest.mark.parametrize("row", sorted(ROWS.keys() - {HEAD}))
def test_every_test_that_a_row_names_is_there(row: str) -> None:
    assert missing(ROWS[row]) == []


def test_the_readme_leads_to_it() -> None:
    readme = (DOCS.parent / "README.md").read_text()
    assert "(docs/security.md)" in readme
    assert "(SECURITY.md)" in readme
