"""How a task ended: one closed set, decided from the unit and the last words of its run.

A tender's exit status 1 means many things (reference: solo5's tenders/common and tenders/hvt), and so does a SIGKILL.
They are told apart by what PID 1 has on record (was a stop requested first?) and by who said what at the end
(`unit.words`). docs/outcomes.md has a row for each ending.
"""

import signal as signals
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from solo5_systemd.unit.exit_messages import LastWords, signal_name, tender_message
from solo5_systemd.unit.state import MainCode, UnitState
from solo5_systemd.workload import UnitKind


class Ending(StrEnum):
    """Every way in which a task can end."""

    EXITED = "exited"
    ABORTED = "aborted"
    TRAPPED = "trapped"
    GUEST_OUT_OF_MEMORY = "guest-out-of-memory"
    STOPPED = "stopped"
    HOST_SHUTDOWN = "host-shutdown"
    KILLED = "killed"
    STALLED = "stalled"
    OUT_OF_MEMORY = "out-of-memory"
    FORBIDDEN_CALL = "forbidden-system-call"
    TENDER_REFUSED = "tender-refused"
    TENDER_FAILED = "tender-failed"
    NOT_STARTED = "not-started"
    TIMED_OUT = "timed-out"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a task ended.

    Attributes:
        ending: which of the closed set.
        exit_code: the tender's exit status, None where it was killed or never ran.
        signal: the signal that ended it, also where hvt caught it and exited with 1; None otherwise.
        sentence: for people.
        futile: why a retry, of the same task on the same host, cannot help; empty where it can.
        memory_peak: bytes, of guest and tender together; None where systemd has not kept it (it does from 256 on).
        last_lines: the console's end, for those ends that need an explanation.
    """

    ending: Ending
    exit_code: int | None = None
    signal: int | None = None
    sentence: str
    futile: str = ""
    memory_peak: int | None = None
    last_lines: Sequence[str] = ()

    @property
    def retry(self) -> bool:
        """A retry can help."""
        return not self.futile

    @property
    def clean(self) -> bool:
        """The guest ended with 0, or somebody asked for the end."""
        return self.ending in REQUESTED or (self.ending is Ending.EXITED and self.exit_code == 0)

    @property
    def plain(self) -> bool:
        """Exit code and signal say it all."""
        return self.clean or (self.ending is Ending.EXITED and self.retry)

    @property
    def verdict(self) -> str:
        """The sentence, and after a failure why a retry cannot help, where it cannot."""
        return self.sentence if self.clean or self.retry else f"{self.sentence}; a retry cannot help: {self.futile}"

    @property
    def shell_status(self) -> int:
        """What `solo5ctl run` and `wait` exit with: the guest's own status, 128+N for a signal, 126 for a refusal."""
        if self.ending in (Ending.TENDER_REFUSED, Ending.NOT_STARTED):
            return 126
        if self.signal is not None:
            return 128 + self.signal
        return 125 if self.exit_code is None else self.exit_code


REQUESTED = (Ending.STOPPED, Ending.HOST_SHUTDOWN)

WELL = "nothing failed"
WANTED = "somebody wanted it to end"
_MORE_MEMORY = "it would need as much again: give it more memory"
_EXPLAINED: Mapping[int, tuple[str, str]] = {
    63: (" (it was asked for its help)", "its arguments ask for that"),
    64: (" (it does not accept its arguments)", "its arguments have to change"),
}
"""Statuses that MirageOS gives a meaning: what to say beside them, and why a retry is futile."""

EXIT_STDIN = 208
"""What a service of ours with disks exits with when it is started without their locks; systemd.exec(5)."""

_GUEST_FAULTS = (signals.SIGSEGV, signals.SIGILL, signals.SIGBUS, signals.SIGFPE, signals.SIGTRAP)
_LIMITS = ("timeout", "watchdog")
_STOP_SIGNALS = (signals.SIGINT, signals.SIGTERM)
_ROOM = 1 << 20
"""Bytes below its limit from which on a cgroup's peak shows that it was not its own limit that was met."""


def speaks_for_itself(state: UnitState) -> bool:
    """A unit's record tells its outcome whole: an exit with 0, or a stop that came first."""
    if state.main_code == MainCode.EXITED:
        return state.main_status == 0 or (_stop_caught(state) and state.result not in _LIMITS)
    if state.main_code in (MainCode.KILLED, MainCode.DUMPED) and state.asked_to_stop:
        plain = state.main_status in _STOP_SIGNALS and state.result not in _LIMITS
        return plain or state.main_status == signals.SIGKILL
    return state.main_code == MainCode.NONE


def outcome(state: UnitState, words: LastWords = LastWords(), *, going_down: bool = False) -> Outcome:
    """The outcome of a unit that is over.

    Args:
        state: the unit; of a scope whose caller is not asked nothing is known, and that is what is said.
        words: the end of what was said; without it some ends cannot be told apart, and the likelier one is told.
        going_down: the host is being shut down.
    """
    told = _told(state, words)
    if told.ending is Ending.STOPPED and state.asked_to_stop and going_down:
        told = replace(told, ending=Ending.HOST_SHUTDOWN, sentence="stopped, since the host goes down", futile="")
    return replace(told, memory_peak=state.memory_peak, last_lines=tuple(words.console))


def _told(state: UnitState, words: LastWords) -> Outcome:
    by_sigkill = state.main_code != MainCode.EXITED and state.main_status == signals.SIGKILL
    if state.result == "oom-kill" or (words.oom_killed and by_sigkill):
        return _out_of_memory(state)
    if state.kind is UnitKind.SCOPE and state.main_code == MainCode.NONE:
        return Outcome(ending=Ending.UNKNOWN, sentence="ended; only its caller knows how, since it ran in a scope")
    match state.main_code:
        case MainCode.EXITED:
            return _exited(state, words)
        case MainCode.KILLED | MainCode.DUMPED:
            return _killed(state, words)
        case _:
            return _never_ran(state)


def _out_of_memory(state: UnitState) -> Outcome:
    """By its own limit, or by one above it: the peak tells which."""
    peak, limit = state.memory_peak, state.memory_max
    futile = ""
    if peak is None or limit is None:
        cause = ", which had no more memory for guest and tender"
    elif peak > limit - _ROOM:
        cause, futile = f": guest and tender needed more than the task's {_mib(limit)}", _MORE_MEMORY
    else:
        cause = f", whose memory or whose slice's ran out: the task used {_mib(peak)} of its {_mib(limit)}"
    return Outcome(
        ending=Ending.OUT_OF_MEMORY, signal=signals.SIGKILL, sentence=f"killed by the host{cause}", futile=futile
    )


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.1f}".removesuffix(".0") + " MiB"


# --- the tender exited -----------------------------------------------------------------------------------------


def _exited(state: UnitState, words: LastWords) -> Outcome:
    status = state.main_status
    if not state.executed and status == EXIT_STDIN:
        return Outcome(
            ending=Ending.NOT_STARTED,
            exit_code=status,
            sentence="not started again: the locks on its disks ended with its first start",
            futile="it has to be removed, and started by solo5ctl or Nomad",
        )
    if not state.executed:
        return Outcome(
            ending=Ending.NOT_STARTED,
            exit_code=status,
            sentence=f"systemd could not execute the tender ({status})",
            futile="unit or host have to change",
        )
    if status == 1:
        return _exited_1(state, words)
    memory = _exhausted(status, words)
    if memory is not None:
        return memory
    return _aborted(words) if status == 255 else _by_itself(status)


def _by_itself(status: int) -> Outcome:
    meaning, futile = _EXPLAINED.get(status, ("", "" if status else WELL))
    return Outcome(
        ending=Ending.EXITED, exit_code=status, sentence=f"the guest exited with {status}{meaning}", futile=futile
    )


def _exited_1(state: UnitState, words: LastWords) -> Outcome:
    """Hvt's answer to a stop signal, to its own failures, and a guest's plain 1."""
    number = words.caught
    if _stop_caught(state) and state.result not in _LIMITS:  # the words that name the signal are not looked for
        return Outcome(
            ending=Ending.STOPPED,
            exit_code=1,
            signal=number or signals.SIGTERM,
            sentence="stopped on request",
            futile=WANTED,
        )
    if number is not None:
        return _signalled(state, number, words, exit_code=1)
    if not words.tender:
        return _by_itself(1)
    said = tender_message(words.tender)
    return _failed(said, exit_code=1) if words.began else _refused(said, exit_code=1)


def _stop_caught(state: UnitState) -> bool:
    """A stop came first, and hvt answered it."""
    return state.asked_to_stop and state.main_status == 1 and state.tender != "spt"


def _exhausted(status: int, words: LastWords) -> Outcome | None:
    """OCaml exits with 2 for an exception that nobody caught, and aborts where its runtime gives up."""
    line = words.no_room if status == 255 else None
    futile = "its image alone fills its memory: give it more" if line else ""
    line = line or (words.exhausted if status in (2, 255) else None)
    if line is None:
        return None
    return Outcome(
        ending=Ending.GUEST_OUT_OF_MEMORY,
        exit_code=status,
        sentence=f"the guest ran out of its own memory: {line}",
        futile=futile,
    )


def _aborted(words: LastWords) -> Outcome:
    if words.trap:
        return Outcome(ending=Ending.TRAPPED, exit_code=255, sentence=f"the guest trapped: {words.trap}")
    said = f": {words.abort}" if words.abort else ""
    return Outcome(ending=Ending.ABORTED, exit_code=255, sentence=f"the guest aborted{said}")


def _refused(said: str, exit_code: int | None = None, signal: int | None = None) -> Outcome:
    return Outcome(
        ending=Ending.TENDER_REFUSED,
        exit_code=exit_code,
        signal=signal,
        sentence=f"the tender refused: {said}",
        futile="image, arguments, devices or host have to change",
    )


def _failed(said: str, exit_code: int | None = None, signal: int | None = None) -> Outcome:
    return Outcome(
        ending=Ending.TENDER_FAILED, exit_code=exit_code, signal=signal, sentence=f"the tender failed: {said}"
    )


# --- a signal ended it -----------------------------------------------------------------------------------------


def _killed(state: UnitState, words: LastWords) -> Outcome:
    number = state.main_status
    # A stop that had to come to SIGKILL counts as a timeout too; a limit such as RuntimeMaxSec= begins with SIGTERM.
    if state.asked_to_stop and number == signals.SIGKILL:
        return _stopped(number)
    if state.result in _LIMITS or number in _STOP_SIGNALS:
        return _signalled(state, number, words)
    if number == signals.SIGKILL and words.hung:
        return Outcome(ending=Ending.STALLED, signal=number, sentence="killed: its tender hung, its main thread dead")
    if number == signals.SIGABRT and words.asserted:
        said = tender_message(words.tender)
        return _failed(said, signal=number) if words.began else _refused(said, signal=number)
    if number == signals.SIGSYS or number in _GUEST_FAULTS:
        return _faulted(state, number)
    return _by_somebody(number, words)


def _signalled(state: UnitState, number: int, words: LastWords, exit_code: int | None = None) -> Outcome:
    """By INT, TERM or a limit: at somebody's request where it came through systemd, or where nobody can say."""
    if state.result in _LIMITS:
        return Outcome(
            ending=Ending.TIMED_OUT,
            exit_code=exit_code,
            signal=number,
            sentence=f"ended by systemd: {state.result} ({signal_name(number)})",
        )
    if state.asked_to_stop or words.requested(number) is not False:
        return _stopped(number, exit_code)
    return _by_somebody(number, words, exit_code)


def _stopped(number: int, exit_code: int | None = None) -> Outcome:
    return Outcome(
        ending=Ending.STOPPED,
        exit_code=exit_code,
        signal=number,
        sentence=f"stopped on request ({signal_name(number)})",
        futile=WANTED,
    )


_LIMIT_MET: Mapping[int, str] = {signals.SIGXFSZ: "LimitFSIZE=", signals.SIGXCPU: "LimitCPU="}


def _by_somebody(number: int, words: LastWords, exit_code: int | None = None) -> Outcome:
    if number in _LIMIT_MET:
        return Outcome(
            ending=Ending.KILLED,
            signal=number,
            sentence=f"killed by {signal_name(number)}: it met its limit, {_LIMIT_MET[number]}",
        )
    origin = {True: ", as systemd was asked to", False: ", which systemd did not send", None: ""}
    return Outcome(
        ending=Ending.KILLED,
        exit_code=exit_code,
        signal=number,
        sentence=f"killed by {signal_name(number)}{origin[words.requested(number)]}",
    )


def _faulted(state: UnitState, number: int) -> Outcome:
    """Of spt, whose process the guest shares; hvt's own faults are hvt's."""
    name = signal_name(number)
    if number == signals.SIGSYS:
        who = "tender" if state.tender == "hvt" else "guest"
        return Outcome(
            ending=Ending.FORBIDDEN_CALL,
            signal=number,
            sentence=f"killed: the {who} made a forbidden system call",
            futile="it would make the same call again",
        )
    if state.tender == "hvt":
        return _failed(f"it crashed ({name})", signal=number)
    return Outcome(ending=Ending.TRAPPED, signal=number, sentence=f"the guest trapped ({name})")


def _never_ran(state: UnitState) -> Outcome:
    if state.started:
        return Outcome(ending=Ending.UNKNOWN, sentence="ended; it was removed before systemd could be asked how")
    if state.result == "resources":
        return Outcome(ending=Ending.NOT_STARTED, sentence="systemd could not set the unit up (resources)")
    return Outcome(ending=Ending.NOT_STARTED, sentence="never started: its network could not be attached")
