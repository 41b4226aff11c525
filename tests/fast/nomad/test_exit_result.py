"""Each way to end, as Nomad sees it: success, failure, signal, memory, words."""

from dataclasses import replace

import pytest

from solo5_systemd.nomad.event_messages import exit_event
from solo5_systemd.nomad.wait import exit_error, exit_result
from solo5_systemd.storage.model import FailedDisk
from solo5_systemd.unit.outcome import Ending, Outcome

PLAIN = (Ending.EXITED, Ending.STOPPED, Ending.HOST_SHUTDOWN)


@pytest.mark.parametrize(
    "code, signal, shown",
    [(0, None, (0, 0)), (3, None, (3, 0)), (None, 11, (139, 11)), (1, 15, (143, 15)), (None, 9, (137, 9))],
)
@pytest.mark.parametrize("ending", [ending for ending in Ending if ending is not Ending.UNKNOWN])
def test_code_and_signal_are_reported_and_the_sentence_where_they_do_not_suffice(
    ending: Ending, code: int | None, signal: int | None, shown: tuple[int, int]
) -> None:
    outcome = Outcome(ending=ending, exit_code=code, signal=signal, sentence="ended so")
    result = exit_result(outcome)
    assert (result.exit_code, result.signal) == shown
    assert result.oom_killed is (ending is Ending.OUT_OF_MEMORY)
    assert exit_error(outcome) == ("" if ending in PLAIN else "ended so")


@pytest.mark.parametrize(
    "ending, code, futile, message",
    [
        (Ending.EXITED, 0, "nothing failed", ""),
        (Ending.EXITED, 64, "wrong arguments", "ended so; a retry cannot help: wrong arguments"),
        (Ending.UNKNOWN, None, "", "ended so"),
        (Ending.NOT_STARTED, None, "", "ended so"),
    ],
)
def test_a_failure_without_a_code_has_the_sentence_and_a_repeated_one_has_the_reason(
    ending: Ending, code: int | None, futile: str, message: str
) -> None:
    assert exit_error(Outcome(ending=ending, exit_code=code, sentence="ended so", futile=futile)) == message


def test_a_failure_is_announced_with_all_that_is_known() -> None:
    outcome = Outcome(
        ending=Ending.OUT_OF_MEMORY, signal=9, sentence="OOM-killed", futile="too small", memory_peak=67108864
    )
    event = exit_event(outcome)
    assert event.message == "OOM-killed; a retry cannot help: too small"
    assert event.annotations == {
        "outcome": "out-of-memory",
        "signal": "9",
        "retry": "false",
        "retry_reason": "too small",
        "oom_killed": "true",
        "memory_peak": "67108864",
    }


def test_disks_without_space_are_announced() -> None:
    full = tuple(FailedDisk(task="web", disk=name, path="/srv/x", free=0) for name in ("data", "logs"))
    outcome = Outcome(ending=Ending.EXITED, exit_code=3, sentence="the guest exited with 3; …", failed_disks=full)
    assert exit_event(outcome).annotations["full_disks"] == "data logs"
    lost = (FailedDisk(task="web", disk="data", path="/dev/sda"),)
    assert exit_event(replace(outcome, failed_disks=lost)).annotations["lost_disks"] == "data"
    assert exit_error(outcome) == "the guest exited with 3; …"


def test_what_is_unknown_is_absent_from_an_announcement() -> None:
    event = exit_event(Outcome(ending=Ending.EXITED, exit_code=3, sentence="the guest exited with 3"))
    assert event.message == "The guest exited with 3"
    assert event.annotations == {"outcome": "exited", "exit_code": "3", "retry": "true"}
