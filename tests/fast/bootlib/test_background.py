"""Work that is done in the background, as `boot` makes its trees."""

import threading

import pytest
from tests.support.bootlib.background import begun


def test_two_pieces_of_work_are_done_at_once() -> None:
    both = threading.Barrier(2)
    first, second = begun(both.wait), begun(both.wait)
    assert {first.result(), second.result()} == {0, 1}


def test_a_failure_is_raised_where_the_result_is_fetched() -> None:
    def fail() -> None:
        raise OSError("no space")

    failed = begun(fail)
    with pytest.raises(OSError, match="no space"):
        failed.result()
