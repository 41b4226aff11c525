"""Fail a test that asserts nothing, and record how each test of a run ended.

An assertion is an `assert` that holds, in a test or in a helper of the tests, or an exception that `pytest.raises`
catches. `--record FILE` writes a `Run` as JSON, for tests/check-ran.
"""

import sys
from pathlib import Path
from types import FrameType

import pytest
from _pytest.assertion import rewrite
from tests.ran.run import Ending, Run, digest, encode

TESTS = Path(__file__).resolve().parents[1]

NOTHING = "nothing was asserted. (A __pycache__ from before this check hides assertions: remove it.)"


class Recorder:
    """Follows one run of pytest.

    Args:
        root: its directory `tests` has all tests and their helpers.
        file: where to write the record when the run ends; None: nowhere.
    """

    def __init__(self, root: Path, file: Path | None) -> None:
        self._root = root
        self._file = file
        self._digest = digest(TESTS) if file else ""
        self._collected: list[str] = []
        self._endings: dict[str, Ending] = {}
        self._lines: dict[str, set[int]] = {}
        self._paths: dict[str, str] = {}
        self._asserted = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Before -m and -k leave anything out; those marked `long` are not demanded of `make test`."""
        self._collected.extend(item.nodeid for item in items if not item.get_closest_marker("long"))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self) -> None:
        self._asserted = 0

    def asserted(self, frame: FrameType) -> None:
        """Count an assertion that has held, made by the code of a frame. Plugins' own are no tests'."""
        file = frame.f_code.co_filename
        if file not in self._paths:
            path = Path(file).resolve()
            ours = path.is_relative_to(self._root / "tests")
            self._paths[file] = str(path.relative_to(self._root)) if ours else ""
        if path_in_ids := self._paths[file]:
            self._asserted += 1
            self._lines.setdefault(path_in_ids, set()).add(frame.f_lineno)

    @pytest.hookimpl(trylast=True, specname="pytest_runtest_call")
    def pytest_fail_without_assertion(self) -> None:
        """After the test, unless that has failed."""
        if not self._asserted:
            pytest.fail(NOTHING, pytrace=False)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._endings[report.nodeid] = Ending.FAILED
        elif report.skipped or hasattr(report, "wasxfail"):
            self._endings[report.nodeid] = Ending.SKIPPED
        elif report.when == "call":
            self._endings[report.nodeid] = Ending.PASSED

    def pytest_sessionfinish(self) -> None:
        if self._file is not None:
            lines = {file: frozenset(numbers) for file, numbers in self._lines.items()}
            run = Run(digest=self._digest, collected=self._collected, endings=self._endings, lines=lines)
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._file.write_text(encode(run))


def _count(recorder: Recorder) -> None:
    """Have each `assert` and `pytest.raises` count that holds.

    What pytest has rewritten asks this function whether anything wants to know of an assertion that held. The hook for
    it, pytest_assertion_pass, would have the values formatted each time: that takes four times as long as the tests.
    """

    def holds() -> bool:
        recorder.asserted(sys._getframe(1))
        return False

    def caught(self: object, *failure: object) -> bool:
        done = bool(leave(self, *failure))  # type: ignore[arg-type]  # as it came
        if done:
            recorder.asserted(sys._getframe(1))
        return done

    rewrite._check_if_assertion_pass_impl = holds
    kind = type(pytest.raises(Exception))
    leave = kind.__exit__
    kind.__exit__ = caught  # type: ignore[method-assign]  # there is no hook for it


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", type=Path, metavar="FILE", help="write how each test ended, for tests/check-ran")


def pytest_configure(config: pytest.Config) -> None:
    recorder = Recorder(config.rootpath.resolve(), config.getoption("record"))
    config.pluginmanager.register(recorder, "recorder")
    _count(recorder)
