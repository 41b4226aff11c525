"""What fails `make test` besides a test that fails: one that ran nowhere, one that asserted nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.ran.recorder import NOTHING
from tests.ran.run import Ending, Run, decode, digest, encode
from tests.ran.verdict import complaints

CHECKOUT = Path(__file__).resolve().parents[2]
FILE = "tests/fast/test_x.py"
SOURCE = """
def test_a():
    if seldom:
        assert a
    with pytest.raises(
        ValueError
    ):
        b()
"""


def ran(endings: dict[str, Ending], lines: tuple[int, ...] = (4, 6), left_out: tuple[str, ...] = ()) -> Run:
    found = {f"{FILE}::{test}": ending for test, ending in endings.items()}
    collected = (*found, *(f"{FILE}::{test}" for test in left_out))
    return Run(digest="d", collected=collected, endings=found, lines={FILE: frozenset(lines)})


A, B = ("test_a",), ("test_a[1]", "test_a[2]")
PASSED = {"test_a": Ending.PASSED}
LEFT_OUT = ran({}, left_out=A)


@pytest.mark.parametrize(
    "tests, runs, found",
    [
        pytest.param(A, {"vm": ran({"test_a": Ending.SKIPPED}), "fast": ran(PASSED)}, [], id="passed in one tier"),
        pytest.param((*A, "test_b[1]"), {"fast": ran(PASSED)}, ["::test_b[1]: run nowhere."], id="in no tier"),
        pytest.param(
            A,
            {"container": LEFT_OUT, "vm": LEFT_OUT, "fast": ran({})},
            ["::test_a: left out in container, vm, and run nowhere."],
            id="left out everywhere",
        ),
        pytest.param(
            B,
            {"vm": ran({"test_a[1]": Ending.PASSED, "test_a[2]": Ending.SKIPPED})},
            ["::test_a[2]: skipped in vm."],
            id="each instance counts",
        ),
        pytest.param(A, {"fast": ran({"test_a": Ending.FAILED})}, ["::test_a: failed in fast."], id="failed"),
        *(
            pytest.param(A, {"fast": ran(PASSED, (held,))}, [f":{line}: this assertion of test_a was never evaluated."])
            for held, line in ((5, 4), (4, 5))
        ),
        pytest.param(A, {"vm": ran(PASSED, (4,)), "fast": ran(PASSED, (7,))}, [], id="both held, each in one tier"),
    ],
)
def test_a_test_that_ran_or_asserted_nothing_in_any_tier_is_named(
    tests: tuple[str, ...], runs: dict[str, Run], found: list[str]
) -> None:
    demanded = [f"{FILE}::{test}" for test in tests]
    assert complaints(runs, demanded, {FILE: SOURCE}, "d") == [f"{FILE}{text}" for text in found]


def test_a_report_of_other_tests_is_no_evidence() -> None:
    found = complaints({"fast": ran({"test_a": Ending.PASSED})}, [], {}, "another")
    assert found == ["fast: its report is of other tests; run it again."]


def test_a_run_is_read_as_it_was_written() -> None:
    run = ran({"test_a": Ending.PASSED, "test_b": Ending.SKIPPED})
    assert decode(encode(run)) == run


def test_a_digest_is_of_names_and_texts(tmp_path: Path) -> None:
    found = {digest(tmp_path)}
    for name, text in (("a.py", "1"), ("a.py", "2"), ("b.py", "2")):
        (tmp_path / name).write_text(text)
        found.add(digest(tmp_path))
    assert len(found) == 4
    (tmp_path / "c.txt").touch()
    assert digest(tmp_path) in found


TESTS = """
import pytest

def test_asserts(): assert True
def test_raises():
    with pytest.raises(ZeroDivisionError):
        1 / 0
def test_asserts_nothing():
    for each in []:
        assert each
def test_asserts_in_its_fixture_alone(fixture): pass
def test_is_skipped(): pytest.skip("why")
def test_fails(): assert False
@pytest.mark.vm
def test_is_left_out(): assert True
@pytest.mark.vm
@pytest.mark.long
def test_is_not_demanded(): assert True
@pytest.fixture
def fixture():
    assert True
"""


@pytest.mark.timeout(300)  # pytest has to start
def test_a_run_of_pytest_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nenable_assertion_pass_hook = true\nmarkers =\n vm\n long")
    (tmp_path / "conftest.py").write_text("from tests.ran.recorder import pytest_addoption, pytest_configure")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_x.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "not vm", "--record=record", "-rf"]
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True)
    run = decode((tmp_path / "record").read_text())
    assert {test.partition("::")[2]: str(ending) for test, ending in run.endings.items()} == {
        "test_asserts": "passed",
        "test_raises": "passed",
        "test_asserts_nothing": "failed",
        "test_asserts_in_its_fixture_alone": "failed",
        "test_is_skipped": "skipped",
        "test_fails": "failed",
    }
    assert set(run.collected) - set(run.endings) == {"tests/test_x.py::test_is_left_out"}
    assert {line for lines in run.lines.values() for line in lines} == {4, 6, 21}
    assert done.stdout.splitlines().count(NOTHING) == 2
    assert run.digest == digest(CHECKOUT / "tests")
