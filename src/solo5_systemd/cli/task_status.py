"""The column STATUS of a task."""

from solo5_systemd.cli.render import span
from solo5_systemd.engine.task import Phase, Task

SECOND = 1_000_000

_ENDINGS = {
    "exited": "Exited",
    "aborted": "Aborted",
    "trapped": "Trapped",
    "guest-out-of-memory": "Guest out of memory",
    "stopped": "Stopped",
    "host-shutdown": "Host shutdown",
    "killed": "Killed",
    "stalled": "Hung and killed",
    "out-of-memory": "Out of memory",
    "forbidden-system-call": "Forbidden call",
    "tender-refused": "Refused",
    "tender-failed": "Tender failed",
    "not-started": "Not started",
    "timed-out": "Timed out",
    "unknown": "Ended",
}
"""The column STATUS of each `unit.outcome.Ending`, which a list of running tasks does not import."""


def status(task: Task, now: int, asleep: int = 0) -> str:
    """Return the column STATUS, in podman's format.

    Args:
        now: microseconds since the epoch.
        asleep: since when it sleeps or is dormant, in microseconds since the epoch; 0: it is awake, or over.
    """
    match task.phase:
        case Phase.STARTING | Phase.STOPPING | Phase.HUNG:
            return task.phase.value.capitalize()
        case Phase.RUNNING | Phase.FROZEN:
            if asleep and task.phase is Phase.RUNNING:
                return f"Asleep {span((now - asleep) / SECOND)}"
            up = f"Up {span((now - task.started) / SECOND)}" if task.started else "Up"
            return f"{up} (frozen)" if task.phase is Phase.FROZEN else up
        case Phase.ENDED if asleep:
            return f"Dormant {span((now - asleep) / SECOND)}"
        case Phase.ENDED:
            return _ended(task, now)


def _ended(task: Task, now: int) -> str:
    word = "Ended" if task.started else "Not started"
    if task.outcome is not None:
        word = _ENDINGS[task.outcome.ending]
        if task.outcome.ending == "exited":
            word = f"{word} ({task.outcome.exit_code})"
    return f"{word} {span((now - task.state.ended) / SECOND)} ago" if task.state.ended else word
