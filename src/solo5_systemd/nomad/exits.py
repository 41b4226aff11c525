"""How a task ended, as Nomad has it: exit code, signal, and whether memory ran out."""

from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.unit.outcome import Ending, Outcome


def exit_result(outcome: Outcome) -> wire.ExitResult:
    """Zero in all of it is Nomad's success; where nothing is known, `exit_error` says so beside it."""
    return wire.ExitResult(
        exit_code=_exit_code(outcome),
        signal=outcome.signal or 0,
        oom_killed=outcome.ending is Ending.OUT_OF_MEMORY,
    )


def _exit_code(outcome: Outcome) -> int:
    """As other drivers have it, a task that a signal ended has exit code 128+N beside the signal."""
    if outcome.exit_code is not None:
        return outcome.exit_code
    return 128 + outcome.signal if outcome.signal else 0


def exit_error(outcome: Outcome) -> str:
    """What is shown as "Exit Message", and counted as a failure; empty where code and signal say it all."""
    return outcome.sentence if outcome.exit_code is None and outcome.signal is None else ""
