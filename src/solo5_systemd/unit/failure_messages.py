"""The last messages of a run, from its guest, its tender and PID 1, and the facts that they contain.

The source of a line is never guessed from its text: a guest can write to its console only, so its lines never count as
the tender's or systemd's. The texts are those of Solo5 (tenders/hvt, bindings), OCaml and systemd (src/core).
"""

import re
import signal as signals
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from solo5_systemd.base.sanitize import bounded

MAX_LINE = 300
"""Characters of a line of the guest or the tender that an outcome or an error quotes."""

_ON_SIGNAL = re.compile(r"Exiting on signal ([0-9]+)\b")
_NOTICE = re.compile(r"adjusting memory to|WARNING: |Not enough guest memory for ring allocation")
_IN_RUN = re.compile(r"^(Fatal |KVM: |Invalid guest )")
_ASSERTION = re.compile(r"Assertion .* failed")
TRAP_TYPE = re.compile(r"\btrap: type=")
TRAP = re.compile("trap", re.IGNORECASE)
ABORT = re.compile("abort", re.IGNORECASE)
IMAGE_FILLS_MEMORY = re.compile(r"ABORT: .*\bNot enough memory", re.IGNORECASE)
# caml_fatal_error(3) of OCaml's runtime, 4.14 to 5.3 (runtime/*.c): some texts have the prefix twice.
OUT_OF_MEMORY = re.compile(
    r"Fatal error: (exception (Stdlib\.)?Out.of.memory|(?!exception ).*("
    r"out of memory|not enough (heap )?memory|no memory for|allocation failure|(failed to|cannot|could not) allocate))",
    re.IGNORECASE,
)
NO_ROOM_TO_START = re.compile(
    r"Fatal error: (?!exception ).*(reserve minor heaps|failed to (allocate|create)|(allocate|memory for) initial)",
    re.IGNORECASE,
)
EXCEPTION = re.compile(r"^Fatal error: exception ")
_ABORT_CALLED = "Solo5: solo5_abort() called"
_REQUEST = re.compile(r"\S+: (?:Sen[td]\w*|Killed unit cgroup with) (?:signal )?SIG(\w+)\b.* on client request")
_STOP_JOB = frozenset({"de5b426a63be47a7b6ac3eaac82e2f6f", "9d1aaa27d60140bd96365438aad20286"})
_OOM_KILL = frozenset({"fe6faa94e7774663a0da52717891d8ef", "d989611b15e44c9dbf31e3c81256e4ed"})
"""MESSAGE_ID= of SD_MESSAGE_UNIT_STOPPING, _STOPPED; of _OUT_OF_MEMORY, _OOMD_KILL (systemd/sd-messages.h)."""

PASSING = ("Cannot allocate memory", "Device or resource busy", "Resource temporarily unavailable", "Too many open")
"""Errors of the host in the messages of a tender, which a later start may not have."""

GENERIC_MESSAGE_IDS = frozenset(
    {
        "7d4958e842da4a758f6c1cdc7b36dcc5",  # SD_MESSAGE_UNIT_STARTING
        "be02cf6855d2428ba40df7e9d022f03d",  # SD_MESSAGE_UNIT_FAILED
        "d9b373ed55a64feb8242e02dbe79a49c",  # SD_MESSAGE_UNIT_FAILURE_RESULT
    }
)
"""PID 1's messages about every failed start, which have no reason (`journalctl --catalog`): no error quotes them."""


class UnitMessage(NamedTuple):
    """A journal entry of PID 1 about the unit.

    `text` may contain the unit's Description=, which a job's author chooses; `message_id` (MESSAGE_ID=) cannot.
    """

    text: str
    message_id: str = ""


@dataclass(frozen=True, kw_only=True)
class ExitMessages:
    """The last lines of one run, oldest first.

    Attributes:
        console: of guest (stdout) and tender, in order of arrival.
        systemd: PID 1's messages about the unit; empty if the journal cannot be read, since each unit has some.
        hung: the tender was found hung and killed (`Console.log_hung`).
        idle: solo5-networkd has ended it for idleness. PID 1's own message is lost while journald restarts.
    """

    guest: Sequence[str] = ()
    tender: Sequence[str] = ()
    console: Sequence[str] = ()
    systemd: Sequence[UnitMessage] = ()
    hung: bool = False
    idle: bool = False

    @property
    def caught_signal(self) -> int | None:
        """Return the signal that hvt caught and exited on; None if its stderr names none."""
        found = next((m for line in reversed(self.tender) if (m := _ON_SIGNAL.search(line))), None)
        return int(found[1]) if found else None

    def sent_by_systemd(self, number: int) -> bool | None:
        """Return whether systemd sent a signal, on client request or in a stop job; None without a journal."""
        if not self.systemd:
            return None
        if any(message.message_id in _STOP_JOB for message in self.systemd):
            return True
        # Without a MESSAGE_ID=, a message begins with the unit's name, so that no Description= can imitate it.
        plain = (message.text for message in self.systemd if not message.message_id)
        sent = (m[1] for text in plain if (m := _REQUEST.match(text)))
        return signal_name(number).removeprefix("SIG") in sent

    @property
    def oom_killed(self) -> bool:
        """Return whether PID 1 logged an OOM kill; it may do so after the run's end (memory.events of the cgroup)."""
        return any(message.message_id in _OOM_KILL for message in self.systemd)

    def guest_line(self, pattern: re.Pattern[str]) -> str | None:
        """Return the guest's last line with a pattern, or None."""
        return _last(self.guest, pattern)

    @property
    def before_abort(self) -> str | None:
        """Return the guest's own line before that of solo5_abort(), which has no reason; or None."""
        lines = [line for line in self.guest if line.strip()]
        called = next((at for at in reversed(range(len(lines))) if _ABORT_CALLED in lines[at]), 0)
        own = lines[called - 1 : called] if called else []
        return _stripped(line for line in own if not line.startswith("Solo5: "))

    @property
    def assertion_failed(self) -> bool:
        """Return whether an assertion of the tender failed: it ends with SIGABRT then."""
        return _last(self.tender, _ASSERTION) is not None

    @property
    def guest_entered(self) -> bool:
        """Return whether the guest was entered: it wrote a line, or the tender reports an error of a running guest."""
        return bool(self.guest) or any(_IN_RUN.match(_without_prefix(line)) for line in self.tender)


def tender_message(lines: Sequence[str]) -> str:
    """Return the error of a tender's stderr without its `solo5-hvt: ` prefix, printable and at most QUOTE characters.

    The error is the last line about a failure in the run, or else the first line, which usage follows. Notices are
    skipped.
    """
    errors = [text for line in lines if (text := _without_prefix(line)) and not _NOTICE.match(text)]
    fatal = [line for line in errors if _IN_RUN.match(line)]
    return bounded(fatal[-1] if fatal else next(iter(errors), ""), MAX_LINE)


def signal_name(number: int) -> str:
    """Return a signal's name such as SIGTERM; `signal 64` for a number without one."""
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _without_prefix(line: str) -> str:
    return re.sub(r"^\S*solo5-\w+: ", "", line.strip())


def _last(lines: Sequence[str], pattern: re.Pattern[str]) -> str | None:
    return _stripped(line for line in reversed(lines) if pattern.search(line))


def _stripped(lines: Iterable[str]) -> str | None:
    return next((bounded(line.strip(), MAX_LINE) for line in lines), None)
