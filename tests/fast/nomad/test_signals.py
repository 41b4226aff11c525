"""Signals in every spelling, and what each does to a unikernel."""

import pytest

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.nomad.task.signals import action, name, stop_signal
from solo5_systemd.task.workload import StopSignal


@pytest.mark.parametrize(
    "text, meant",
    [
        ("SIGINT", 2), ("INT", 2), ("sigterm", 15), ("Term", 15), (" SIGKILL ", 9), ("15", 15), ("9", 9),
        ("SIGSTOP", 19), ("19", 19), ("cont", 18), ("18", 18),
    ],
)  # fmt: skip
def test_a_signal_is_understood_in_every_spelling(text: str, meant: int) -> None:
    assert action(text) == meant


@pytest.mark.parametrize(
    "text, known_as",
    [("SIGHUP", "SIGHUP"), ("usr1", "SIGUSR1"), ("3", "SIGQUIT"), ("SIGWINCH", "SIGWINCH"), ("TSTP", "SIGTSTP"),
     ("SIGRTMIN", "SIGRTMIN"), ("40", "signal 40"), ("SIGSEGV", "SIGSEGV")],
)  # fmt: skip
def test_any_other_signal_has_no_effect_and_a_name(text: str, known_as: str) -> None:
    assert action(text) is None
    assert name(text) == known_as


@pytest.mark.parametrize(
    "text",
    ["", "SIG", "SIGRELOAD", "0", "-9", "99", "9" * 5000, "²", "١٥", "SIGSIGTERM", "TERM\0"],
    ids=lambda text: repr(text[:12]),
)
def test_what_is_no_signal_is_refused_with_those_there_are(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="does not exist.*SIGINT, SIGTERM and SIGKILL end a unikernel"):
        action(text)


@pytest.mark.parametrize(
    "text, meant",
    [("", StopSignal.TERM), ("SIGTERM", StopSignal.TERM), ("int", StopSignal.INT), ("2", StopSignal.INT),
     ("SIGUSR1", None), ("SIGKILL", None), ("SIGSTOP", None)],
)  # fmt: skip
def test_a_task_ends_by_the_two_signals_that_a_tender_knows(text: str, meant: StopSignal | None) -> None:
    assert stop_signal(text) is meant
