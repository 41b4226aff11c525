"""What was said last in a task's run, by its guest, by its tender and by PID 1, and what follows from it.

Who said something is never guessed from the text: a guest can write to its console alone, so its words are not taken
for the tender's or for systemd's. Their texts are those of Solo5 (tenders/hvt, bindings), OCaml and systemd (src/core).
"""

import re
import signal as signals
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_ON_SIGNAL = re.compile(r"Exiting on signal ([0-9]+)\b")
_NOTICE = re.compile(r"adjusting memory to|WARNING: |Not enough guest memory for ring allocation")
_IN_RUN = re.compile(r"^(Fatal |KVM: |Invalid guest )")
_ASSERTION = re.compile(r"Assertion .* failed")
_TRAP = re.compile(r"\btrap: type=")
_NO_ROOM = re.compile(r"ABORT: .*\bNot enough memory", re.IGNORECASE)
_EXHAUSTED = re.compile(r"Fatal error: (exception Out.of.memory|out of memory)", re.IGNORECASE)
_REQUEST = re.compile(r"\b(?:Sen[td]\w*|Killed unit cgroup with) (?:signal )?SIG(\w+)\b.* on client request")
_STOP_JOB = re.compile(r"Stopp(ing|ed) ")
_OOM_KILL = re.compile(r"killed by the OOM killer|systemd-oomd killed")


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
    systemd: Sequence[str] = ()
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
        if any(_STOP_JOB.match(line) for line in self.systemd):
            return True
        sent = (m[1] for line in self.systemd if (m := _REQUEST.search(line)))
        return signal_name(number).removeprefix("SIG") in sent

    @property
    def oom_killed(self) -> bool:
        """PID 1 saw the unit's memory.events count a kill, be it after the end that it belongs to."""
        return _last(self.systemd, _OOM_KILL) is not None

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
    """The line of a tender's stderr that says why, without its `solo5-hvt: ` prefix.

    That is the last one on a failure in the run, else the first: usage follows it. Notices do not say why.
    """
    said = [bare for line in lines if (bare := _bare(line)) and not _NOTICE.match(bare)]
    fatal = [line for line in said if _IN_RUN.match(line)]
    return fatal[-1] if fatal else next(iter(said), "")


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
    return next((line.strip() for line in lines), None)
