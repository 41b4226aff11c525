"""Signals by the names that Nomad's users and templates use, and the effect of each on a unikernel."""

import signal

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.task.quantities import signal_number
from solo5_systemd.task.workload import StopSignal

SIGKILL = 9

_EFFECTIVE = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT)


def action(text: str) -> int | None:
    """Return the number of a signal that has an effect; None: nothing is sent.

    SIGSTOP and SIGCONT stand for the cgroup freezer: a stopped tender's guest clock would run on. A unikernel has no
    signal handlers, so the default action of any other signal would kill its tender. That is no error, since Nomad
    fails a task whose template cannot send its `change_signal`.

    Raises:
        InvalidRequestError: there is no such signal.
    """
    number = signal_number(text)
    if not number:
        raise InvalidRequestError(
            f"signal {text!r} does not exist: expected a name or number of signal(7).",
            "SIGINT, SIGTERM and SIGKILL end a unikernel, SIGSTOP and SIGCONT freeze and thaw it.",
        )
    return number if number in _EFFECTIVE else None


def name(text: str) -> str:
    """Return the canonical name of an existing signal, such as `SIGHUP` for `1` and `hup`."""
    number = signal_number(text)
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return f"signal {number}"


def stop_signal(text: str) -> StopSignal | None:
    """Return a task's `kill_signal`, SIGTERM if it is empty; None: a signal that does not stop a tender cleanly."""
    number = signal_number(text or "SIGTERM")
    return {2: StopSignal.INT, 15: StopSignal.TERM}.get(number)


def is_kill(text: str) -> bool:
    """Return whether a signal is SIGKILL."""
    return signal_number(text) == SIGKILL
