"""Perform the attacks of docs/security-tests.md, and print which are repelled: `python3 -m tests.attacks PLACE`.

PLACE is where this runs: `host` performs those of the fast tests, `container` those of a booted machine, and `vm` those
whose tests have that mark. A row of the table is one attack; it is repelled if each of its tests in this place passes.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from _pytest._io import TerminalWriter
from tests.support.doc_tables import Attack, attacks

TESTS = Path(__file__).resolve().parent
PLACES = ("host", "container", "vm")
ELSEWHERE = {"machine/beside/": "make beside", "cluster/": "make cluster"}
REPELLED, GOT, UNTRIED = "repelled", "GOT", "untried"
_ENDED = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
# The table's parser, which asserts nothing, is imported before pytest begins.
_PYTEST = (
    "-p", "no:terminal", "-o", "addopts=--strict-markers", "-p", "no:cacheprovider",
    "-W", "ignore::pytest.PytestAssertRewriteWarning",
)  # fmt: skip


class Writer:
    """As much of pytest's reporter as is needed without one."""

    def __init__(self) -> None:
        self._tw = TerminalWriter(sys.stdout)


class Lines:
    """A plugin of pytest that prints a line for each attack as soon as its tests have ended.

    Attributes:
        verdicts: of the attacks that were performed, by their names.
    """

    def __init__(self, chosen: Sequence[Attack], place: str) -> None:
        self._chosen = chosen
        self._place = place
        self._waiting: dict[str, set[str]] = {}
        self._failed: dict[str, str] = {}
        self.verdicts: dict[str, str] = {}

    def pytest_configure(self, config: pytest.Config) -> None:
        """Have the writer by which pytest formats the values of an assertion that fails."""
        config.pluginmanager.register(Writer(), "terminalreporter")

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out what performs no attack, and what needs the other kind of machine."""
        kept = [item for item in items if self._wants(item)]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept

    def _wants(self, item: pytest.Item) -> bool:
        if bool(item.get_closest_marker("vm")) != (self._place == "vm"):
            return False
        return any(_is(item.nodeid, test) for attack in self._chosen for test in attack.tests)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Find the instances of each attack's tests."""
        ids = [item.nodeid for item in session.items]
        for attack in self._chosen:
            self._waiting[attack.name] = {found for found in ids if any(_is(found, test) for test in attack.tests)}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take a test's end into account; the last one of an attack decides."""
        if report.failed:
            self._failed.setdefault(report.nodeid, GOT if report.when == "call" else UNTRIED)
            print(f"──── {report.nodeid}, {report.when}\n{report.longreprtext}", flush=True)
        if report.when == "teardown":
            for attack in self._chosen:
                self._ended(attack, report.nodeid)

    def _ended(self, attack: Attack, test: str) -> None:
        waiting = self._waiting[attack.name]
        if test not in waiting:
            return
        waiting.remove(test)
        if verdict := self._failed.get(test):
            self.verdicts[attack.name] = verdict
        if not waiting:
            _print(self.verdicts.setdefault(attack.name, REPELLED), attack, attack.tests)


def _is(found: str, test: str) -> bool:
    """Return whether an identifier of pytest is that of a test of the table, or of an instance of it."""
    return found.partition("[")[0].endswith(f"tests/{test.partition('[')[0]}") and (
        "[" not in test or found.endswith(test)
    )


def _print(verdict: str, attack: Attack, tests: Sequence[str]) -> None:
    print(f"{verdict:8}  {attack.name}  [{', '.join(tests)}]", flush=True)


def here(attack: Attack, place: str) -> Attack:
    """Return the attack with those tests alone that may run in a place."""
    return attack.with_tests(
        test
        for test in attack.tests
        if not test.startswith(tuple(ELSEWHERE)) and test.startswith("fast/") == (place == "host")
    )


def perform(chosen: Sequence[Attack], place: str, words: Sequence[str] = ()) -> int:
    """Perform attacks in a place; return the exit status."""
    for attack in chosen:
        for prefix, target in ELSEWHERE.items():
            if place != "vm" and (tests := [test for test in attack.tests if test.startswith(prefix)]):
                _print(target, attack, tests)
    possible = [found for attack in chosen if (found := here(attack, place)).tests]
    files = sorted({str(TESTS / test.partition("[")[0]) for attack in possible for test in attack.tests})
    if not files:
        return 0
    lines = Lines(possible, place)
    status = pytest.main([*_PYTEST, *words, *files], plugins=[lines])
    if status not in _ENDED:
        return int(status)
    if place == "container":
        for attack in possible:
            if attack.name not in lines.verdicts:
                _print("VM=1", attack, attack.tests)
    repelled = sum(verdict == REPELLED for verdict in lines.verdicts.values())
    print(f"{place}: {repelled} of {len(lines.verdicts)} attacks were repelled.", flush=True)
    return int(repelled < len(lines.verdicts))


def main() -> int:
    """Perform the attacks whose row has a text."""
    parser = argparse.ArgumentParser(prog="python3 -m tests.attacks", description=__doc__)
    parser.add_argument("place", choices=PLACES)
    parser.add_argument("--only", default="", metavar="TEXT", help="rows with this text in them (default: all)")
    options = parser.parse_args()
    chosen = [attack for attack in attacks() if options.only in attack.row]
    return perform(chosen, options.place, ["--timeout=900" if options.place == "vm" else "--timeout=300"])


if __name__ == "__main__":
    sys.exit(main())
