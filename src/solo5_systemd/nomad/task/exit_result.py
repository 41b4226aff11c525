"""The outcome of a task as Nomad's exit result, exit message and task event."""

from solo5_systemd.nomad.events.messages import TaskEvent
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.unit.outcome import Ending, Outcome


def exit_result(outcome: Outcome) -> wire.ExitResult:
    """Return exit code, signal and OOM flag. All zero is Nomad's success; a signal N has exit code 128+N.

    A stop has the same result for both tenders: hvt catches the signal and exits with 1, spt is killed by it.
    """
    signal = outcome.signal or 0
    return wire.ExitResult(
        exit_code=128 + signal if signal else outcome.exit_code or 0,
        signal=signal,
        oom_killed=outcome.ending is Ending.OUT_OF_MEMORY,
    )


def exit_error(outcome: Outcome) -> str:
    """Return Nomad's "Exit Message"; empty if exit code and signal are the whole outcome.

    A message makes it a failure even if both are zero. It states whether a retry is futile, for the operator: Nomad
    applies its restart policy after every failure, and a driver cannot prevent that.
    """
    return "" if outcome.plain else outcome.verdict


def exit_event(outcome: Outcome) -> TaskEvent:
    """Return the event of the task's end; annotations of unknown values are absent."""
    details: dict[str, object] = {
        "outcome": outcome.ending.value,
        "exit_code": outcome.exit_code,
        "signal": None if outcome.signal is None else int(outcome.signal),
        "retry": "true" if outcome.retry else "false",
        "retry_reason": outcome.futile or None,
        "oom_killed": "true" if outcome.ending is Ending.OUT_OF_MEMORY else None,
        "memory_peak": outcome.memory_peak,
    }
    annotations = {key: str(value) for key, value in details.items() if value is not None}
    sentence = outcome.verdict
    return TaskEvent(message=sentence[:1].upper() + sentence[1:], annotations=annotations)
