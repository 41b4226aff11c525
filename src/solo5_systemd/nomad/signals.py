"""Signals as Nomad's users name them, and what each does to a unikernel."""

import re
from enum import Enum, auto

from solo5_systemd.errors import InvalidRequestError
from solo5_systemd.workload import StopSignal

SIGKILL = 9

_NAMES = {"INT": 2, "KILL": SIGKILL, "TERM": 15, "CONT": 18, "STOP": 19}
_WORDS = _NAMES | {str(number): number for number in _NAMES.values()}


class Freezing(Enum):
    """What STOP and CONT become: a tender would be stopped while its guest's clock ran on."""

    FREEZE = auto()
    THAW = auto()


def action(text: str) -> int | Freezing:
    """The signal to send, or the freezing that is meant.

    Raises:
        InvalidRequestError: a signal that a tender does not take, or none at all.
    """
    number = _number(text)
    match number:
        case 2 | 15 | 9:
            return number
        case 19:
            return Freezing.FREEZE
        case 18:
            return Freezing.THAW
        case _:
            raise _refusal(text)


def _refusal(text: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"signal {text!r} cannot be sent to a unikernel: it has none of its own, and a tender knows SIGINT and "
        "SIGTERM; any other ends it without a word.",
        "Use SIGINT, SIGTERM or SIGKILL, and SIGSTOP or SIGCONT to freeze and thaw.",
    )


def stop_signal(text: str) -> StopSignal | None:
    """A task's `kill_signal`; empty is the driver's default, None a signal that would do no good."""
    number = _number(text or "SIGTERM")
    return {2: StopSignal.INT, 15: StopSignal.TERM}.get(number)


def is_kill(text: str) -> bool:
    return _number(text) == SIGKILL


def _number(text: str) -> int:
    """With or without SIG, in any case, or as a number; 0 for what is none of those that mean something here."""
    return _WORDS.get(re.sub("^SIG", "", text.strip().upper()), 0)
