"""Each way to end, as Nomad sees it: success, failure, signal, memory, words."""

from dataclasses import replace

import pytest

from solo5_systemd.nomad.event_messages import exit_event
from solo5_systemd.nomad.wait import exit_error, exit_result
from solo5_systemd.storage.model import FailedDisk
from solo5_systemd.unit.outcome import Ending, Outcome

Told = tuple[int | None, int | None, tuple[int, int, bool]]
ENDINGS: dict[Ending, list[Told]] = {
    Ending.EXITED: [(0, None, (0, 0, False)), (3, None, (3, 0, False))],
    Ending.ABORTED: [(255, None, (255, 0, False))],
    Ending.TRAPPED: [(255, None, (255, 0, False)), (None, 11, (139, 11, False))],
    Ending.GUEST_OUT_OF_MEMORY: [(2, None, (2, 0, False)), (255, None, (255, 0, False))],
    Ending.STOPPED: [(1, 15, (143, 15, False)), (None, 15, (143, 15, False)), (None, 9, (137, 9, False))],
    Ending.HOST_SHUTDOWN: [(1, 15, (143, 15, False)), (None, 15, (143, 15, False))],
    Ending.KILLED: [(None, 9, (137, 9, False)), (1, 15, (143, 15, False))],
    Ending.STALLED: [(None, 9, (137, 9, False))],
    Ending.OUT_OF_MEMORY: [(None, 9, (137, 9, True))],
    Ending.FORBIDDEN_CALL: [(None, 31, (159, 31, False))],
    Ending.TENDER_REFUSED: [(1, None, (1, 0, False)), (None, 6, (134, 6, False))],
    Ending.TENDER_FAILED: [(1, None, (1, 0, False)), (None, 11, (139, 11, False))],
    Ending.NOT_STARTED: [(203, None, (203, 0, False))],
    Ending.TIMED_OUT: [(None, 15, (143, 15, False)), (1, 15, (143, 15, False))],
}
CASES = [(ending, *case) for ending, cases in ENDINGS.items() for case in cases]
PLAIN = (Ending.EXITED, Ending.STOPPED, Ending.HOST_SHUTDOWN)


@pytest.mark.parametrize("ending, code, signal, event", CASES)
def test_code_and_signal_are_reported_and_the_sentence_where_they_do_not_suffice(
    ending: Ending, code: int | None, signal: int | None, event: tuple[int, int, bool]
) -> None:
    outcome = Outcome(ending=ending, exit_code=code, signal=signal, sentence="ended so")
    result = exit_result(outcome)
    assert (result.exit_code, result.signal, result.oom_killed) == event
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
def test_a_failure_without_a_code_has_the_sentence_and_one_that_comes_again_says_why(
    ending: Ending, code: int | None, futile: str, message: str
) -> None:
    assert exit_error(Outcome(ending=ending, exit_code=code, sentence="ended so", futile=futile)) == message


def test_every_ending_is_tried() -> None:
    assert set(Ending) == {*ENDINGS, Ending.UNKNOWN}


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
    full = tuple(FailedDisk(disk=name, path="/srv/x", free=0) for name in ("data", "logs"))
    outcome = Outcome(ending=Ending.EXITED, exit_code=3, sentence="the guest exited with 3; …", failed_disks=full)
    assert exit_event(outcome).annotations["full_disks"] == "data logs"
    lost = (FailedDisk(disk="data", path="/dev/sda"),)
    assert exit_event(replace(outcome, failed_disks=lost)).annotations["lost_disks"] == "data"
    assert exit_error(outcome) == "the guest exited with 3; …"


def test_what_is_unknown_is_absent_from_an_announcement() -> None:
    event = exit_event(Outcome(ending=Ending.EXITED, exit_code=3, sentence="the guest exited with 3"))
    assert event.message == "The guest exited with 3"
    assert event.annotations == {"outcome": "exited", "exit_code": "3", "retry": "true"}
