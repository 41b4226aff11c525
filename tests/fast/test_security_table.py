"""docs/security-tests.md says what stops which attack; each row names the test that performs it, and that is there."""

import pytest
from tests.support.doc_tables import DOCS, Attack, attacks, missing

ATTACKERS = ("job", "image", "guest", "tender", "neighbour", "local user", "LAN client")
ROWS = attacks()


def test_there_is_a_row_for_every_attacker() -> None:
    assert [each for each in ATTACKERS if not any(row.name.startswith(f"{each} ") for row in ROWS)] == []


def test_no_two_rows_are_of_one_attack() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS) > 100


@pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in ROWS])
def test_every_test_that_a_row_names_is_there(row: Attack) -> None:
    assert row.row.count(" | ") == 2
    assert missing(row.row.rpartition(" | ")[2]) == []


def test_the_readme_leads_to_it() -> None:
    readme = (DOCS.parent / "README.md").read_text()
    assert "(docs/security.md)" in readme
    assert "(SECURITY.md)" in readme
