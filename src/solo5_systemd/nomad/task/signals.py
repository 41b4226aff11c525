"""Signals by the names that Nomad's users and templates use, and the effect of each on a unikernel."""

import re
import signal

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.task.workload import StopSignal

SIGKILL = 9

_NUMBERS = {name.removeprefix("SIG"): number.value for name, number in signal.Signals.__members__.items()}
_NUMBERS |= {str(int(number)): int(number) for number in signal.valid_signals()}

_EFFECTIVE = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT)


def action(text: str) -> int | None:
    """Return the number of a signal that has an effect; None: nothing is sent.

    SIGSTOP and SIGCONT stand for the cgroup freezer: a stopped tender's guest clock would run on. A unikernel has no
    signal handlers, so the default action of any other signal would kill its tender. That is no error, since Nomad
    fails a task whose template cannot send its `change_signal`.

    Raises:
        InvalidRequestError: there is no such signal.
    """
    number = _number(text)
    if not number:
        raise InvalidRequestError(
            f"signal {text!r} does not exist: expected a name or number of signal(7).",
            "SIGINT, SIGTERM and SIGKILL end a unikernel, SIGSTOP and SIGCONT freeze and thaw it.",
        )
    return number if number in _EFFECTIVE else None


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
