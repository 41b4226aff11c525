"""Signals by the names that Nomad's users and templates use, and the effect of each on a unikernel."""

import re
import signal
from enum import Enum, auto

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.task.workload import StopSignal

SIGKILL = 9

_NUMBERS = {name.removeprefix("SIG"): number.value for name, number in signal.Signals.__members__.items()}
_NUMBERS |= {str(int(number)): int(number) for number in signal.valid_signals()}


class FreezerAction(Enum):
    """The effect of SIGSTOP and SIGCONT: the cgroup freezer, since a stopped tender's guest clock would run on."""

    FREEZE = auto()
    THAW = auto()


def action(text: str) -> int | FreezerAction | None:
    """Return the signal to send, or the freezer action; None: nothing is sent.

    A unikernel has no signal handlers, so the default action of any other signal would kill its tender. That is no
    error, since Nomad fails a task whose template cannot send its `change_signal`.

    Raises:
        InvalidRequestError: there is no such signal.
    """
    number = _number(text)
    match number:
        case 2 | 15 | 9:
            return number
        case 19:
            return FreezerAction.FREEZE
        case 18:
            return FreezerAction.THAW
        case 0:
            raise InvalidRequestError(
                f"signal {text!r} does not exist: expected a name or number of signal(7).",
                "SIGINT, SIGTERM and SIGKILL end a unikernel, SIGSTOP and SIGCONT freeze and thaw it.",
            )
        case _:
            return None


def name(text: str) -> str:
    """Return the canonical name of an existing signal, such as `SIGHUP` for `1` and `hup`."""
    number = _number(text)
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return f"signal {number}"


def stop_signal(text: str) -> StopSignal | None:
    """Return a task's `kill_signal`, SIGTERM if it is empty; None: a signal that does not stop a tender cleanly."""
    number = _number(text or "SIGTERM")
    return {2: StopSignal.INT, 15: StopSignal.TERM}.get(number)


def is_kill(text: str) -> bool:
    """Return whether a signal is SIGKILL."""
    return _number(text) == SIGKILL


def _number(text: str) -> int:
    """Return the number of a signal, given by number or by name in any case, with or without SIG; 0: no such signal."""
    return _NUMBERS.get(re.sub("^SIG", "", text.strip().upper()), 0)
