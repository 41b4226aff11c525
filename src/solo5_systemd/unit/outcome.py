"""How a task ended: one closed set, decided from the unit and the last words on its console.

A tender's exit status 1 means many things (reference: solo5's tenders/common and tenders/hvt). It is told apart by
what PID 1 has on record (was a stop requested first?) and by what the tender itself said on stderr: a guest cannot
write there, so its words are never taken for the tender's.
"""

import re
import signal as signals
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from solo5_systemd.unit.state import MainCode, UnitState
from solo5_systemd.workload import UnitKind


class Ending(StrEnum):
    """Every way in which a task can end."""

    EXITED = "exited"
    ABORTED = "aborted"
    TRAPPED = "trapped"
    STOPPED = "stopped"
    KILLED = "killed"
    OUT_OF_MEMORY = "out-of-memory"
    FORBIDDEN_CALL = "forbidden-system-call"
    TENDER_REFUSED = "tender-refused"
    TENDER_FAILED = "tender-failed"
    NOT_STARTED = "not-started"
    TIMED_OUT = "timed-out"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class LastWords:
    """The last lines of a task's console, oldest first: the guest's (stdout) and the tender's (stderr)."""

    guest: Sequence[str] = ()
    tender: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a task ended.

    Attributes:
        ending: which of the closed set.
        exit_code: the tender's exit status, None where it was killed or never ran.
        signal: the signal that killed it, None otherwise.
        sentence: for people.
        clean: the guest ended with 0, or was stopped because somebody asked.
    """

    ending: Ending
    exit_code: int | None = None
    signal: int | None = None
    sentence: str

    @property
    def clean(self) -> bool:
        return self.ending is Ending.STOPPED or (self.ending is Ending.EXITED and self.exit_code == 0)

    @property
    def shell_status(self) -> int:
        """What `solo5ctl run` and `wait` exit with: the guest's own status, 128+N for a signal, 126 for a refusal."""
        if self.ending in (Ending.TENDER_REFUSED, Ending.NOT_STARTED):
            return 126
        if self.signal is not None:
            return 128 + self.signal
        return 125 if self.exit_code is None else self.exit_code


_GUEST_FAULTS = (signals.SIGSEGV, signals.SIGILL, signals.SIGBUS, signals.SIGFPE, signals.SIGTRAP)
_LIMITS = ("timeout", "watchdog")
_STOP_SIGNALS = (signals.SIGINT, signals.SIGTERM)
_ON_SIGNAL = re.compile(r"Exiting on signal ([0-9]+)\b")

# systemd.exec(5), "Process exit codes": what PID 1 reports where it could not execute the tender. A guest may exit
# with the same; its unit, of Type=exec, was active then.
_EXEC_FAILURES = range(200, 246)


def outcome(state: UnitState, words: LastWords = LastWords()) -> Outcome:
    """The outcome of a unit that is over.

    Args:
        state: the unit; of a scope whose caller is not asked nothing is known, and that is what is said.
        words: the console's end; without it an exit status of 1 cannot be told apart further.
    """
    if state.result == "oom-kill":
        return Outcome(
            ending=Ending.OUT_OF_MEMORY,
            signal=signals.SIGKILL,
            sentence="killed by the host: guest and tender needed more than the task's memory",
        )
    if state.kind is UnitKind.SCOPE and state.main_code == MainCode.NONE:
        return Outcome(ending=Ending.UNKNOWN, sentence="ended; only its caller knows how, since it ran in a scope")
    match state.main_code:
        case MainCode.EXITED:
            return _exited(state, words)
        case MainCode.KILLED | MainCode.DUMPED:
            return _killed(state)
        case _:
            return _never_ran(state)


def _exited(state: UnitState, words: LastWords) -> Outcome:
    status = state.main_status
    if status == 0:
        return Outcome(ending=Ending.EXITED, exit_code=0, sentence="the guest exited with 0")
    if status in _EXEC_FAILURES and not state.active_exit:
        return Outcome(
            ending=Ending.NOT_STARTED, exit_code=status, sentence=f"systemd could not execute the tender ({status})"
        )
    if status == 1:
        return _exited_1(state, words)
    if status == 255:
        return _exited_255(words)
    return Outcome(ending=Ending.EXITED, exit_code=status, sentence=f"the guest exited with {status}")


def _exited_1(state: UnitState, words: LastWords) -> Outcome:
    """Hvt's answer to a stop signal, to its own failures, and a guest's plain 1."""
    stopped = next((m for line in reversed(words.tender) if (m := _ON_SIGNAL.search(line))), None)
    if stopped and state.result in _LIMITS:
        return Outcome(ending=Ending.TIMED_OUT, exit_code=1, sentence=f"ended by systemd: {state.result}")
    if stopped or (state.asked_to_stop and not words.tender):
        number = int(stopped[1]) if stopped else None
        name = f" ({_signal_name(number)})" if number else ""
        return Outcome(ending=Ending.STOPPED, exit_code=1, sentence=f"stopped on request{name}")
    if not words.tender:
        return Outcome(ending=Ending.EXITED, exit_code=1, sentence="the guest exited with 1")
    said = tender_message(words.tender)
    if words.guest:
        return Outcome(ending=Ending.TENDER_FAILED, exit_code=1, sentence=f"the tender failed: {said}")
    return Outcome(ending=Ending.TENDER_REFUSED, exit_code=1, sentence=f"the tender refused: {said}")


def _exited_255(words: LastWords) -> Outcome:
    trap = next((line for line in reversed(words.guest) if "trap" in line.lower()), None)
    if trap:
        return Outcome(ending=Ending.TRAPPED, exit_code=255, sentence=f"the guest trapped: {trap.strip()}")
    abort = next((line for line in reversed(words.guest) if "abort" in line.lower()), "")
    said = f": {abort.strip()}" if abort else ""
    return Outcome(ending=Ending.ABORTED, exit_code=255, sentence=f"the guest aborted{said}")


def _killed(state: UnitState) -> Outcome:
    number = state.main_status
    name = _signal_name(number)
    # A stop that had to come to SIGKILL counts as a timeout too; a limit such as RuntimeMaxSec= begins with SIGTERM.
    if state.asked_to_stop and number == signals.SIGKILL:
        return Outcome(ending=Ending.STOPPED, signal=number, sentence=f"stopped on request ({name})")
    if state.result in _LIMITS:
        return Outcome(ending=Ending.TIMED_OUT, signal=number, sentence=f"ended by systemd: {state.result} ({name})")
    if number in _STOP_SIGNALS:
        return Outcome(ending=Ending.STOPPED, signal=number, sentence=f"stopped on request ({name})")
    if number == signals.SIGSYS:
        return Outcome(
            ending=Ending.FORBIDDEN_CALL, signal=number, sentence="killed: the guest made a forbidden system call"
        )
    if number in _GUEST_FAULTS:
        return Outcome(ending=Ending.TRAPPED, signal=number, sentence=f"the guest trapped ({name})")
    return Outcome(ending=Ending.KILLED, signal=number, sentence=f"killed by {name}")


def _never_ran(state: UnitState) -> Outcome:
    if state.started:
        return Outcome(ending=Ending.UNKNOWN, sentence="ended; it was removed before systemd could be asked how")
    if state.result == "resources":
        return Outcome(ending=Ending.NOT_STARTED, sentence="systemd could not set the unit up (resources)")
    return Outcome(ending=Ending.NOT_STARTED, sentence="never started: its network could not be attached")


def tender_message(lines: Sequence[str]) -> str:
    """The line of a tender's stderr that says why: the first, without its `solo5-hvt: ` prefix."""
    first = next((line.strip() for line in lines if line.strip()), "")
    return re.sub(r"^\S*solo5-\w+: ", "", first)


def _signal_name(number: int) -> str:
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"
