"""Each way to end, as Nomad sees it: success, failure, signal, memory."""

import pytest

from solo5_systemd.nomad.exits import exit_error, exit_result
from solo5_systemd.unit.outcome import Ending, Outcome

Told = tuple[int | None, int | None, tuple[int, int, bool]]
ENDINGS: dict[Ending, list[Told]] = {
    Ending.EXITED: [(3, None, (3, 0, False))],
    Ending.ABORTED: [(255, None, (255, 0, False))],
    Ending.TRAPPED: [(255, None, (255, 0, False)), (None, 11, (139, 11, False))],
    Ending.STOPPED: [(1, None, (143, 15, False)), (None, 15, (143, 15, False)), (None, 9, (137, 9, False))],
    Ending.KILLED: [(None, 9, (137, 9, False))],
    Ending.OUT_OF_MEMORY: [(None, 9, (137, 9, True))],
    Ending.FORBIDDEN_CALL: [(None, 31, (159, 31, False))],
    Ending.TENDER_REFUSED: [(1, None, (1, 0, False))],
    Ending.TENDER_FAILED: [(1, None, (1, 0, False))],
    Ending.NOT_STARTED: [(203, None, (203, 0, False))],
    Ending.TIMED_OUT: [(None, 15, (143, 15, False)), (1, None, (1, 0, False))],
}
CASES = [(ending, *case) for ending, cases in ENDINGS.items() for case in cases]


@pytest.mark.parametrize("ending, code, signal, told", CASES)
def test_code_and_signal_are_told_and_the_sentence_where_they_do_not_say_it_all(
    ending: Ending, code: int | None, signal: int | None, told: tuple[int, int, bool]
) -> None:
    outcome = Outcome(ending=ending, exit_code=code, signal=signal, sentence="ended so")
    result = exit_result(outcome)
    assert (result.exit_code, result.signal, result.oom_killed) == told
    assert exit_error(outcome) == ("" if ending in (Ending.EXITED, Ending.STOPPED) else "ended so")


def test_success_is_zero_in_all_of_it() -> None:
    outcome = Outcome(ending=Ending.EXITED, exit_code=0, sentence="the guest exited with 0")
    assert (exit_result(outcome).ByteSize(), exit_error(outcome)) == (0, "")


@pytest.mark.parametrize("ending", [Ending.UNKNOWN, Ending.NOT_STARTED])
def test_where_nothing_is_known_the_sentence_makes_it_a_failure(ending: Ending) -> None:
    assert exit_error(Outcome(ending=ending, sentence="never started")) == "never started"


def test_every_ending_is_tried() -> None:
    assert set(Ending) == {*ENDINGS, Ending.UNKNOWN}
