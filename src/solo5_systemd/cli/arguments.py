"""Parsers of the options of verbs, for argparse's `type=`. Those of a task's settings are in `task/`.

Each raises InvalidRequestError with one sentence that has the option, the text and what was expected.
"""

import re
import signal as signals
from typing import TYPE_CHECKING

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.base.names import TaskName, task_name

if TYPE_CHECKING:
    from solo5_systemd.task.workload import StopSignal

# Types of values are imported where a value is parsed, for startup time: `--help` takes none.

_DECIMAL = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6})?", re.ASCII)

KILL_SIGNALS = (signals.SIGINT, signals.SIGTERM, signals.SIGKILL)


def disk_size(text: str) -> int:
    """Return the bytes of `134217728`, `64M`, `64MiB` or `1g`; suffixes are powers of 1024."""
    from solo5_systemd.task.quantities import size as parse

    return parse(text, "disk size")


def line_count(text: str) -> int:
    """Return the number of last lines to show."""
    from solo5_systemd.task.quantities import integer

    return integer(text, "--tail", 0, 10**9)


def seconds(text: str) -> float:
    """Return a timeout in seconds."""
    if not _DECIMAL.fullmatch(text):
        raise InvalidRequestError(f"--time {text!r} is not a timeout: expected seconds, such as 10 or 0.5.")
    return float(text)


def interval(text: str) -> float:
    """Return a sampling interval in seconds."""
    if not _DECIMAL.fullmatch(text) or not 0.1 <= float(text) <= 86400:
        raise InvalidRequestError(f"--interval {text!r} is not an interval: expected 0.1 to 86400 seconds, such as 5.")
    return float(text)


def stop_signal(text: str) -> "StopSignal":
    """Return the stop signal (KillSignal=) of a tender."""
    from solo5_systemd.task.quantities import signal_number
    from solo5_systemd.task.workload import StopSignal

    number = signal_number(text)
    if number not in (signals.SIGINT, signals.SIGTERM):
        raise InvalidRequestError(f"--signal {text!r} is not a stop signal: expected INT or TERM.")
    return StopSignal(signals.Signals(number).name)


def kill_signal(text: str) -> int:
    """Return the number of a signal that `kill` may send."""
    from solo5_systemd.task.quantities import signal_number

    number = signal_number(text)
    if number not in KILL_SIGNALS:
        raise InvalidRequestError(
            f"--signal {text!r} cannot be sent: expected INT, TERM or KILL, the signals that a tender handles; guests "
            "receive none.",
            "To pause and resume a guest: solo5ctl freeze, solo5ctl thaw.",
        )
    return number


def derived_name(image: str, suffix: str) -> TaskName:
    """Return the default task name: the file name's stem and a suffix that makes it unique."""
    stem = image.rpartition("/")[2].partition(".")[0]
    usable = re.sub(r"[^A-Za-z0-9_-]+", "-", stem, flags=re.ASCII).lstrip("-_")[:64]
    return task_name(f"{usable or 'unikernel'}-{suffix}")
