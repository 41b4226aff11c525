"""How a task ended, as Nomad has it: exit code, signal, whether memory ran out, and a message."""

import signal as signals

from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.unit.outcome import Ending, Outcome

PLAIN = (Ending.EXITED, Ending.STOPPED)
"""Endings that code and signal say completely."""


def exit_result(outcome: Outcome) -> wire.ExitResult:
    """Zero in all of it is Nomad's success; as other drivers have it, a signal N comes with exit code 128+N."""
    signal = _signal(outcome)
    return wire.ExitResult(
        exit_code=128 + signal if signal else outcome.exit_code or 0,
        signal=signal,
        oom_killed=outcome.ending is Ending.OUT_OF_MEMORY,
    )


def _signal(outcome: Outcome) -> int:
    """A stop is told alike for both tenders: hvt catches its signal and exits with 1, spt dies of it."""
    if outcome.ending is Ending.STOPPED:
        return outcome.signal or signals.SIGTERM
    return outcome.signal or 0


def exit_error(outcome: Outcome) -> str:
    """What is shown as "Exit Message", and counted as a failure where code and signal are zero."""
    return "" if outcome.ending in PLAIN else outcome.sentence
