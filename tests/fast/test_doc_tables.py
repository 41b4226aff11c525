"""Tables of the documentation that name the tests which show each row. All of these tests exist."""

import re

import pytest
from tests.support.doc_tables import DOCS, TESTS, attacks, missing, table

ATTACKERS = ("job", "image", "guest", "tender", "neighbour", "local user", "LAN client")
ATTACKS = attacks()
INVENTORY = (TESTS / "INVENTORY.md").read_text()
FAULTS = {int(row[1]): row[2] for row in re.finditer(r"^\| (\d+) \|(?:[^|]*\|){2}([^|]*)\|$", INVENTORY, re.MULTILINE)}
SURVIVAL = {
    row[1].strip(): row[2]
    for row in re.finditer(
        r"^\| ([^-|][^|]*)\|(?:[^|]*\|){5}([^|]*)\|$", (DOCS / "survival.md").read_text(), re.MULTILINE
    )
}
STORAGE = {
    row: cells["shown by"] for row, cells in table((DOCS / "storage.md").read_text(), "What survives what").items()
}
ROWS = {
    **{f"fault {number}": cell for number, cell in FAULTS.items()},
    **{each.name: each.row.rpartition(" | ")[2] for each in ATTACKS},
    **{f"storage: {row}": cell for row, cell in STORAGE.items()},
    **{f"survival: {row}": cell for row, cell in SURVIVAL.items() if row != "what dies"},
}


@pytest.mark.parametrize("cell", ROWS.values(), ids=ROWS)
def test_every_test_that_is_named_is_there(cell: str) -> None:
    assert missing(cell) == []


def test_no_row_is_passed_over() -> None:
    assert sorted(FAULTS) == list(range(1, 51))
    assert len(re.findall(r"^\| \d+ \|", INVENTORY, re.MULTILINE)) == 50
    assert len(STORAGE) == 10
    assert all(cell.startswith(("`", "not run with disks; `")) for cell in STORAGE.values())
    assert "what dies" in SURVIVAL
    assert len(SURVIVAL) > 15
    assert len({each.name for each in ATTACKS}) == len(ATTACKS) > 100
    assert [each.row for each in ATTACKS if each.row.count(" | ") != 2] == []


def test_there_is_a_row_for_every_attacker() -> None:
    assert [each for each in ATTACKERS if not any(row.name.startswith(f"{each} ") for row in ATTACKS)] == []


def test_the_readme_leads_to_the_attacks() -> None:
    readme = (DOCS.parent / "README.md").read_text()
    assert "(docs/security.md)" in readme
    assert "(SECURITY.md)" in readme


def test_a_name_that_is_no_test_is_found() -> None:
    gone = "machine/test_survival.py::test_nobody_wrote_this"
    assert missing(f"`{gone}`") == [gone]
    assert missing("a test, surely") != []
    assert missing("`not a test`") != []
