"""The runner of tiers: what is started when, what is kept of each, and what the run's exit status is."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests import tiers

CHECKOUT = Path(__file__).resolve().parents[2]

# Two tiers that end only when both have been started; one that needs no other; one that fails; one that waits for ever.
MAKEFILE = """
left: ; @touch left-began; until [ -e right-began ]; do sleep 0.01; done; echo '=== 2 passed in 0.10s ==='
right: ; @touch right-began; until [ -e left-began ]; do sleep 0.01; done; echo right ended
single: ; @echo 12 passed, 1 warning in 3.21s
broken: ; @echo 'to stderr' >&2; exit 3
endless: ; @trap 'touch taken-away; exit 1' TERM; touch endless-began; while :; do sleep 0.01; done
alone: ; @[ ! -e alone-runs ]; touch alone-runs; sleep 0.1; rm alone-runs
alone-too: ; @[ ! -e alone-runs ]; touch alone-runs; sleep 0.1; rm alone-runs
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory with a Makefile, which is the current one."""
    (tmp_path / "Makefile").write_text(MAKEFILE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_tiers_run_side_by_side(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tiers.main(["--at-most", "2", "left", "right"]) == 0
    assert "right ended" in capsys.readouterr().out


def test_no_more_tiers_run_at_once_than_wanted(place: Path) -> None:
    assert tiers.main(["--at-most", "1", "alone", "alone-too"]) == 0


def test_a_tier_may_count_as_several(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "PLACES", {"alone": 2})
    assert tiers.main(["--at-most", "2", "alone", "alone-too"]) == 0
    assert tiers.main(["--at-most", "1", "alone"]) == 0, "it runs at all"


def test_a_tier_that_fails_fails_the_run_and_the_others_go_on(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tiers.main(["--at-most", "1", "broken", "single"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "to stderr" in lines  # whole, and as a line of its own
    used = r"\d+ s of processor time"
    assert any(re.fullmatch(rf"broken +\d+ s  FAILED \(2\), {used}", line) for line in lines)
    assert any(re.fullmatch(rf"single +\d+ s  passed, {used}: 12 passed, 1 warning in 3.21s", line) for line in lines)
    assert lines[-1].endswith("FAILED: broken")


def test_a_tier_without_a_target_fails_the_run(place: Path) -> None:
    assert tiers.main(["no-such-tier"]) == 1


def test_a_run_that_is_ended_takes_its_tiers_along(place: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.tiers", "endless"], env=environment, stdout=subprocess.PIPE
    )  # fmt: skip
    while not (place / "endless-began").exists():
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert (place / "taken-away").exists()


def test_closing_lines_of_pytest_are_found_with_and_without_a_frame() -> None:
    output = """
========================= test session starts ==========================
tests/fast/test_a.py ..........                                    [100%]
================ 1 failed, 2820 passed in 33.10s =================
FAILED tests/fast/test_b.py::test_c - assert 3 passed
10 passed, 2 deselected in 0.70s
"""
    assert tiers.summaries(output.splitlines()) == (
        "1 failed, 2820 passed in 33.10s",
        "10 passed, 2 deselected in 0.70s",
    )


def test_progress_shows_the_last_line_with_text_in_it() -> None:
    assert tiers.last_line("a\nb\n\n") == "b"
    assert tiers.last_line("") == "no output yet"
    assert tiers.last_line("x" * 50 + "y" * 50, 10) == "xxxxx…yyyyy"


def test_every_target_of_the_makefile_is_run_by_a_tier() -> None:
    """A target runs what it needs, and what its recipe calls; `make test` runs `TIERS`."""
    text = (CHECKOUT / "Makefile").read_text()
    rules = re.findall(r"^([a-z -]+):(?!=)([^#\n]*)(.*)\n((?:\t.*\n)*)", text, re.MULTILINE)
    [tiers_of_test] = re.findall(r"^TIERS := ([a-z -]+)", text, re.MULTILINE)
    runs = {"test": set(tiers_of_test.split())}
    for targets, needed, _, recipe in rules:
        words = [needed.partition(":=")[2] or needed, *re.findall(r"\$\(MAKE\) ([a-z -]+)", recipe)]
        for target in targets.split():
            runs.setdefault(target, set()).update(word for words_ in words for word in words_.split())
    reached, waiting = set[str](), ["test"]
    while waiting:
        target = waiting.pop()
        waiting += () if target in reached else runs.get(target, ())
        reached.add(target)
    listed = {target for targets, _, comment, _ in rules if comment for target in targets.split()}
    assert listed - reached == {"bare"}  # bare-bookworm and bare-trixie by one word
    assert len(listed) > 20
