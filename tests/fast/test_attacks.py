"""`make attack`: a line for each row of docs/security-tests.md, which is repelled only if all of its tests pass."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.attacks import here
from tests.support.doc_tables import Attack

CHECKOUT = Path(__file__).resolve().parents[2]
TESTS = """
import pytest

@pytest.fixture
def missing():
    raise OSError

def test_holds(): assert True
def test_opens():
    found = "it is open"
    assert found == "closed"
@pytest.fixture
def left_behind():
    yield
    raise OSError

def test_has_no_way(missing): assert True
def test_is_not_taken_back(left_behind): assert False
@pytest.mark.parametrize("way", ["near", "far"])
def test_of_two_ways(way): assert way == "near"
"""
PROGRAM = """
import sys
from pathlib import Path
from tests import attacks
from tests.support.doc_tables import Attack
attacks.TESTS = Path.cwd() / "tests"
tests = [("fast/test_it.py::test_" + name for name in names.split(",")) for names in sys.argv[1:]]
sys.exit(attacks.perform([Attack(name=f"row {n}", row="", tests=tuple(each)) for n, each in enumerate(tests)], "host"))
"""


VERDICTS = {
    "holds": "repelled",
    "of_two_ways[near]": "repelled",
    "of_two_ways": "GOT",
    "opens,holds": "GOT",
    "has_no_way": "untried",
    "is_not_taken_back": "GOT",
}


@pytest.mark.parametrize(("rows", "status"), [(2, 0), (len(VERDICTS), 1)])
def test_an_attack_is_repelled_if_all_its_tests_pass(tmp_path: Path, rows: int, status: int) -> None:
    (tmp_path / "tests" / "fast").mkdir(parents=True)
    (tmp_path / "tests" / "fast" / "test_it.py").write_text(TESTS)
    words = [sys.executable, "-c", PROGRAM, *[*VERDICTS][:rows]]
    environment = {"PYTHONPATH": str(CHECKOUT), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    lines = {
        int(line.partition("  row ")[2][0]): line.split()[0] for line in done.stdout.splitlines() if "  row" in line
    }
    assert (lines, done.returncode) == (dict(enumerate([*VERDICTS.values()][:rows])), status), done.stdout + done.stderr
    assert ("AssertionError: assert 'it is open' == 'closed'" in done.stdout) == bool(status)


def test_each_test_has_one_place() -> None:
    tests = ("fast/test_a.py::test_a", "machine/test_b.py::test_b", "machine/beside/test_c.py::test_c")
    attack = Attack(name="", row="", tests=tests)
    assert here(attack, "host").tests == tests[:1]
    assert here(attack, "container").tests == here(attack, "vm").tests == tests[1:2]
