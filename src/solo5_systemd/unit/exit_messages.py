"""What was said last in a task's run, by its guest, by its tender and by PID 1, and what follows from it.

Who said something is never guessed from the text: a guest can write to its console alone, so its words are not taken
for the tender's or for systemd's. Their texts are those of Solo5 (tenders/hvt, bindings), OCaml and systemd (src/core).
"""

import re
import signal as signals
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from solo5_systemd.text import QUOTE, bounded

_ON_SIGNAL = re.compile(r"Exiting on signal ([0-9]+)\b")
_NOTICE = re.compile(r"adjusting memory to|WARNING: |Not enough guest memory for ring allocation")
_IN_RUN = re.compile(r"^(Fatal |KVM: |Invalid guest )")
_ASSERTION = re.compile(r"Assertion .* failed")
_TRAP = re.compile(r"\btrap: type=")
_NO_ROOM = re.compile(r"ABORT: .*\bNot enough memory", re.IGNORECASE)
_EXHAUSTED = re.compile(r"Fatal error: (exception Out.of.memory|out of memory)", re.IGNORECASE)
_REQUEST = re.compile(r"\S+: (?:Sen[td]\w*|Killed unit cgroup with) (?:signal )?SIG(\w+)\b.* on client request")
_STOP_JOB = frozenset({"de5b426a63be47a7b6ac3eaac82e2f6f", "9d1aaa27d60140bd96365438aad20286"})
_OOM_KILL = frozenset({"fe6faa94e7774663a0da52717891d8ef", "d989611b15e44c9dbf31e3c81256e4ed"})
"""MESSAGE_ID= of SD_MESSAGE_UNIT_STOPPING and _STOPPED, of _OUT_OF_MEMORY and _OOMD_KILL (systemd/sd-messages.h)."""


class Remark(NamedTuple):
    """An entry of PID 1's in the journal.

    Its text may hold a unit's description, which a job's author chooses; its MESSAGE_ID= does not.
    """

    text: str
    message_id: str = ""


@dataclass(frozen=True, kw_only=True)
class LastWords:
    """The last lines of one run, oldest first.

    Attributes:
        guest: its console (stdout).
        tender: its messages (stderr).
        console: both, in the order in which they came.
        systemd: PID 1's remarks on the unit; empty where the journal is not ours to read, since it always has some.
        hung: whoever waited for the task found its tender hung, and killed it for that.
    """

    guest: Sequence[str] = ()
    tender: Sequence[str] = ()
    console: Sequence[str] = ()
    systemd: Sequence[Remark] = ()
    hung: bool = False

    @property
    def caught(self) -> int | None:
        """The signal that hvt caught, and exited for."""
        found = next((m for line in reversed(self.tender) if (m := _ON_SIGNAL.search(line))), None)
        return int(found[1]) if found else None

    def requested(self, number: int) -> bool | None:
        """A signal came through systemd, on request or for a stop, as PID 1 remarks; None where nothing is known."""
        if not self.systemd:
            return None
        if any(remark.message_id in _STOP_JOB for remark in self.systemd):
            return True
        # These have no MESSAGE_ID=, and a unit's name in the place where a description could begin.
        plain = (remark.text for remark in self.systemd if not remark.message_id)
        sent = (m[1] for text in plain if (m := _REQUEST.match(text)))
        return signal_name(number).removeprefix("SIG") in sent

    @property
    def oom_killed(self) -> bool:
        """PID 1 saw the unit's memory.events count a kill, be it after the end that it belongs to."""
        return any(remark.message_id in _OOM_KILL for remark in self.systemd)

    @property
    def no_room(self) -> str | None:
        """A guest's word that its image alone fills its memory."""
        return _last(self.guest, _NO_ROOM)

    @property
    def exhausted(self) -> str | None:
        """A guest's word that it has used up its memory."""
        return _last(self.guest, _EXHAUSTED)

    @property
    def trap(self) -> str | None:
        """The line that says which, else one that says that there was one."""
        return _last(self.guest, _TRAP) or _containing(self.guest, "trap")

    @property
    def abort(self) -> str | None:
        return _containing(self.guest, "abort")

    @property
    def asserted(self) -> bool:
        return _last(self.tender, _ASSERTION) is not None

    @property
    def began(self) -> bool:
        """The guest had been entered: it spoke, or the tender complains of what happens only then."""
        return bool(self.guest) or any(_IN_RUN.match(_bare(line)) for line in self.tender)


def tender_message(lines: Sequence[str]) -> str:
    """Return the line of a tender's stderr that says why, without its `solo5-hvt: ` prefix; printable and bounded.

    That is the last one on a failure in the run, else the first: usage follows it. Notices do not say why.
    """
    said = [bare for line in lines if (bare := _bare(line)) and not _NOTICE.match(bare)]
    fatal = [line for line in said if _IN_RUN.match(line)]
    return bounded(fatal[-1] if fatal else next(iter(said), ""), QUOTE)


def signal_name(number: int) -> str:
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _bare(line: str) -> str:
    return re.sub(r"^\S*solo5-\w+: ", "", line.strip())


def _last(lines: Sequence[str], wanted: re.Pattern[str]) -> str | None:
    return _stripped(line for line in reversed(lines) if wanted.search(line))


def _containing(lines: Sequence[str], word: str) -> str | None:
    return _stripped(line for line in reversed(lines) if word in line.lower())


def _stripped(lines: Iterable[str]) -> str | None:
    return next((bounded(line.strip(), QUOTE) for line in lines), None)
