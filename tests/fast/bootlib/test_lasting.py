"""What a person sees of work that takes long."""

import time

import pytest
from tests.support.bootlib import report


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_long_work_is_reported_when_it_begins_while_it_lasts_and_when_it_ends(
    capsys: pytest.CaptureFixture[str],
) -> None:
    seen: list[str] = []
    with report.lasting("building the agent", 480, interval=0.01):
        while len(seen) < 3:
            seen += lines(capsys)
            time.sleep(0.01)
    seen += lines(capsys)
    assert seen[0].endswith(": building the agent (once, about 8 min) …")
    assert seen[1].endswith(": … building the agent: 0 s of about 8 min")
    assert seen[-1].endswith(": … building the agent took 0 s")


def test_work_that_fails_is_not_reported_as_done(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OSError, match="no space"), report.lasting("making the disk", 4):
        raise OSError("no space")
    assert [line.partition(": ")[2] for line in lines(capsys)] == ["making the disk (once, about 4 s) …"]


@pytest.mark.parametrize("seconds, text", [(0.2, "0 s"), (45, "45 s"), (60, "1 min"), (125, "2 min 5 s")])
def test_durations_are_written_as_people_do(seconds: float, text: str) -> None:
    assert report.duration(seconds) == text
