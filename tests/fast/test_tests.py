"""What holds for the text of every test; what holds when they run, tests/check-ran shows."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.ran.source import Function, functions, own

TESTS = Path(__file__).resolve().parents[1]
FILES = sorted(TESTS.rglob("test_*.py"))

SKIPS = ("pytest.skip", "pytest.xfail", "pytest.importorskip", "pytest.exit")
SKIP_MARKS = ("pytest.mark.skip", "pytest.mark.skipif", "pytest.mark.xfail")

SLEEPS = ("time.sleep", "asyncio.sleep")

MEASURED = {
    "contract/test_network_activation.py::test_a_sweep_starts_nothing": "nothing starts it",
    "contract/test_network_activation.py::test_a_service_that_was_killed_starts_it_for_what_is_held": "meanwhile",
    "contract/test_network_activation.py::test_a_task_of_which_nothing_is_known_is_started_once": "not twice",
    "contract/test_network_activation.py::test_packets_are_held_through_a_long_start": "longer than the kernel does",
    "contract/test_network_activation.py::test_what_belongs_to_no_connection_starts_nothing": "nothing starts it",
    "contract/test_network_life.py::test_calls_around_each_exit_are_answered_and_leave_nothing": "of any moment",
    "contract/test_network_life.py::test_killed_again_and_again_between_any_two_steps": "of any moment",
    "contract/test_network_task_namespaces.py::test_what_changes_after_a_check_is_found_by_the_next": "two checks",
    "contract/test_network_sleep.py::test_a_packet_in_the_moment_of_falling_asleep_wakes": "of any moment",
    "contract/test_network_sleep.py::test_packets_and_processor_time_keep_a_task_awake": "longer than the idle time",
    "contract/test_network_sleep.py::test_requests_for_other_addresses_and_broadcasts_wake_no_task": "nothing wakes it",
    "contract/test_network_sleep.py::test_packets_that_the_filter_drops_wake_no_task": "nothing wakes it",
    "guests/test_tender.py::test_tap_deleted_under_the_guest": "it lives on",
    "guests/test_tender.py::test_console_failure_leaves_a_zombie_leader": "a signal does not end it",
    "machine/nomad/test_consoles.py::test_collector_that_was_killed_gets_what_it_missed_from_the_next_agent": (
        "what a collector has in hand cannot be seen"
    ),
    "machine/test_limits.py::test_cpu_quota_holds": "a share of some time",
    "machine/test_outcome.py::test_what_systemd_said_is_waited_for_where_journald_is_just_being_restarted": (
        "what another process waits for cannot be seen"
    ),
    "machine/test_relay.py::test_killed_relay_continues_after_the_last_byte": "of several moments",
    "machine/test_relay.py::test_relay_runs_only_while_it_is_needed": "longer than it stays without need",
    "machine/test_run.py::test_freeze_and_thaw": "what half a second costs",
}
"""Tests that sleep, and why: what they claim is about that very time, or what is waited for cannot be seen."""


def name(node: ast.AST) -> str:
    """Return what is called, or named, by its dotted name."""
    return ast.unparse(node.func if isinstance(node, ast.Call) else node)


def complaints(text: str) -> Iterator[tuple[str, int, str]]:
    """Yield what is wrong with the tests of a module: the test, the line, and what."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and name(node) in SKIPS:
            yield "", node.lineno, f"{name(node)}: a test runs wherever it is chosen; choose it by a mark"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            first = ast.unparse(node.args[0]).lstrip("f")
            if node.func.attr == "setattr" and first[0] in "'\"":
                yield "", node.lineno, "setattr: patch an attribute of the module itself, whose name is checked"
            if node.func.attr == "expect" and first == "'.'":
                yield "", node.lineno, "expect: name the lines of the journal, since any line matches"
        if isinstance(node, ast.Attribute) and name(node) in SKIP_MARKS:
            yield "", node.lineno, f"{name(node)}: a test runs wherever it is chosen; choose it by a mark"
    for test in functions(text):
        yield from ((test.name, line, what) for line, what in _of_a_test(test))


def _of_a_test(test: Function) -> Iterator[tuple[int, str]]:
    for node in own(test):
        if isinstance(node, ast.Return):
            yield node.lineno, "return: a test runs to its end"
    loops = (node for node in ast.walk(test) if isinstance(node, ast.While) and not isinstance(node.test, ast.Constant))
    polls = {node for loop in loops for node in ast.walk(loop)}
    for node in ast.walk(test):
        if node in polls:
            continue
        if isinstance(node, ast.Call) and name(node) in SLEEPS and ast.unparse(node.args[0]) != "0":
            yield node.lineno, f"{name(node)}: wait for a condition, or let time leap (tests/support/fakes/clock.py)"


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(TESTS)))
def test_the_rules_for_tests_are_kept(file: Path) -> None:
    found = list(complaints(file.read_text()))
    here = file.relative_to(TESTS)
    assert [f"{here}:{line}: {what}" for test, line, what in found if f"{here}::{test}" not in MEASURED] == []


def test_each_exception_is_still_one() -> None:
    files = {test.partition("::")[0] for test in MEASURED}
    found = {f"{file}::{test}" for file in files for test, *_ in complaints((TESTS / file).read_text())}
    assert set(MEASURED) <= found


@pytest.mark.parametrize(
    "body, what",
    [
        ("if not vm:\n        return\n    assert vm", "return"),
        ("time.sleep(1)\n    assert not come", "time.sleep"),
        ("for _ in range(3):\n        asyncio.sleep(delay)", "asyncio.sleep"),
        ("pytest.skip('no vm')", "pytest.skip"),
        ("monkeypatch.setattr(f'os.{call}', failing)", "setattr"),
        ("machine.expect('.')", "expect"),
        ("pytest.importorskip('vm')", "pytest.importorskip"),
    ],
)
def test_what_breaks_a_rule_is_named(body: str, what: str) -> None:
    [(_, line, found)] = complaints(f"def test_x():\n    {body}\n")
    assert line in (2, 3)
    assert found.startswith(f"{what}:")


@pytest.mark.parametrize("mark", ["@pytest.mark.skip", "@pytest.mark.skipif(True)", "pytestmark = pytest.mark.xfail\n"])
def test_a_mark_that_skips_is_named(mark: str) -> None:
    [(_, line, found)] = complaints(f"{mark}\ndef test_x(): pass\n")
    assert (line, found.partition("(")[0].partition(":")[0] in SKIP_MARKS) == (1, True)


def test_a_sleep_between_two_looks_at_a_condition_is_none() -> None:
    assert list(complaints("def test_x():\n    while not come():\n        time.sleep(0.01)")) == []
    assert len(list(complaints("def test_x():\n    while True:\n        time.sleep(0.01)"))) == 1


def test_a_helper_that_returns_or_sleeps_is_no_test() -> None:
    text = (
        "def wait():\n    time.sleep(1)\n    return 1\nasync def test_x():\n    def f(): return 1\n    asyncio.sleep(0)"
    )
    assert list(complaints(text)) == []
