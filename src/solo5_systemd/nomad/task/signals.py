"""Signals as Nomad's users and templates name them, and what each does to a unikernel."""

import re
import signal
from enum import Enum, auto

from solo5_systemd.errors import InvalidRequestError
from solo5_systemd.workload import StopSignal

SIGKILL = 9

_WORDS = {name.removeprefix("SIG"): number.value for name, number in signal.Signals.__members__.items()}
_WORDS |= {str(int(number)): int(number) for number in signal.valid_signals()}


class Freezing(Enum):
    """What STOP and CONT become: a tender would be stopped while its guest's clock ran on."""

    FREEZE = auto()
    THAW = auto()


def action(text: str) -> int | Freezing | None:
    """Return the signal to send, or the freezing that is meant; None: no effect.

    A unikernel has no signal handlers, and the default action of any signal but these would kill its tender. Nomad
    fails a task whose template cannot send its `change_signal`, hence no error.

    Raises:
        InvalidRequestError: there is no such signal.
    """
    number = _number(text)
    match number:
        case 2 | 15 | 9:
            return number
        case 19:
            return Freezing.FREEZE
        case 18:
            return Freezing.THAW
        case 0:
            raise InvalidRequestError(
                f"signal {text!r} does not exist: expected a name or number of signal(7).",
                "SIGINT, SIGTERM and SIGKILL end a unikernel, SIGSTOP and SIGCONT freeze and thaw it.",
            )
        case _:
            return None


def name(text: str) -> str:
    """The name of a signal that exists, however it is written."""
    number = _number(text)
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have none
        return f"signal {number}"


def stop_signal(text: str) -> StopSignal | None:
    """A task's `kill_signal`; empty is the driver's default, None a signal that would do no good."""
    number = _number(text or "SIGTERM")
    return {2: StopSignal.INT, 15: StopSignal.TERM}.get(number)


def is_kill(text: str) -> bool:
    return _number(text) == SIGKILL


def _number(text: str) -> int:
    """With or without SIG, in any case, or as a number; 0 for what is no signal."""
    return _WORDS.get(re.sub("^SIG", "", text.strip().upper()), 0)
