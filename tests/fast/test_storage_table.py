"""docs/storage.md has what survives what; each row names the tests that show it, and these are there."""

import pytest
from tests.support.doc_tables import DOCS, missing, table

TABLE = table((DOCS / "storage.md").read_text(), "What survives what")


def test_there_is_a_table() -> None:
    assert len(TABLE) == 10


@pytest.mark.parametrize("row", TABLE)
def test_every_test_that_a_row_names_is_there(row: str) -> None:
    shown = TABLE[row]["shown by"]
    assert missing(shown) == []
    assert shown.startswith(("`", "not run with disks; `"))
