"""How a task ended, as Nomad has it: exit code, signal, whether memory ran out, a message, an event."""

from solo5_systemd.nomad.events.messages import Announcement
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.unit.outcome import Ending, Outcome


def exit_result(outcome: Outcome) -> wire.ExitResult:
    """Zero in all of it is Nomad's success; as other drivers have it, a signal N comes with exit code 128+N.

    A stop is told alike for both tenders: hvt catches its signal and exits with 1, spt dies of it.
    """
    signal = outcome.signal or 0
    return wire.ExitResult(
        exit_code=128 + signal if signal else outcome.exit_code or 0,
        signal=signal,
        oom_killed=outcome.ending is Ending.OUT_OF_MEMORY,
    )


def exit_error(outcome: Outcome) -> str:
    """What is shown as "Exit Message", and counted as a failure where code and signal are zero.

    Empty where code and signal say it all. Nomad asks its restart policy after every failure, and no answer of
    ours can tell it that a retry is futile: so its operator is told.
    """
    return "" if outcome.plain else outcome.verdict


def announcement(outcome: Outcome) -> Announcement:
    """The event that tells of the end; what is unknown is absent from its annotations."""
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
    said = outcome.verdict
    return Announcement(message=said[:1].upper() + said[1:], annotations=annotations)
