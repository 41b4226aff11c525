"""tests/INVENTORY.md names fifty faults and the tests that keep them out. All of these tests exist."""

import re

import pytest
from tests.support.doc_tables import TESTS, missing

TABLE = (TESTS / "INVENTORY.md").read_text()
ROWS = {int(row[1]): row[2] for row in re.finditer(r"^\| (\d+) \|(?:[^|]*\|){2}([^|]*)\|$", TABLE, re.MULTILINE)}


def test_every_fault_has_its_row() -> None:
    assert sorted(ROWS) == list(range(1, 51))
    assert len(re.findall(r"^\| \d+ \|", TABLE, re.MULTILINE)) == 50


@pytest.mark.parametrize("fault", sorted(ROWS))
def test_every_test_that_is_named_is_there(fault: int) -> None:
    assert missing(ROWS[fault]) == []
