"""A console of numbered lines, and what is told of a copy in which one is missing, repeated, misplaced or torn."""

import pytest
from tests.machine.chaos.lines import broken, faults, last_run, numbers

WHOLE = "service: mac 02:f5:40:ca:3c:98 mtu 1500\nserving\ndata: newest 7\ncount 1\ncount 2\ncount 3\ncount 4\n"


def test_a_complete_console_has_no_fault() -> None:
    assert numbers(WHOLE) == [1, 2, 3, 4]
    assert (list(faults(WHOLE)), broken(WHOLE)) == ([], [])


@pytest.mark.parametrize(
    ("was", "now", "fault"),
    [
        ("count 2\ncount 3\n", "", "after line 1 comes 4: 2 lost"),
        ("count 1\n", "", "after line 0 comes 2: 1 lost"),
        ("count 3\n", "count 3\ncount 3\n", "after line 3 comes 3 again"),
        ("count 4\n", "count 4\ncount 2\n", "after line 4 comes 2 again"),
    ],
)
def test_a_line_that_is_not_where_it_belongs_is_reported(was: str, now: str, fault: str) -> None:
    assert list(faults(WHOLE.replace(was, now))) == [fault]


@pytest.mark.parametrize("torn", ["coun", "t 3", "count 3count 4", "nt 2\0"])
def test_a_torn_line_is_reported(torn: str) -> None:
    assert broken(WHOLE + torn + "\n") == [torn]


@pytest.mark.parametrize(
    ("entries", "console"),
    [
        ([("b", "count 1"), ("b", "count 2"), ("", "the end")], "count 1\ncount 2\nthe end\n"),
        ([("a", "count 1"), ("", "count 2"), ("b", "count 1"), ("", "the end")], "count 1\nthe end\n"),
        ([("a", "count 1"), ("a", "count 2"), ("", "count 1")], "count 1\n"),
        ([("", "count 1")], "count 1\n"),
        ([], ""),
    ],
    ids=["one run", "a start that was repeated", "no line of the last run has an invocation", "none has", "no line"],
)
def test_the_last_run_of_a_unit_is_one_console(entries: list[tuple[str, str]], console: str) -> None:
    assert last_run(entries, "b") == console
