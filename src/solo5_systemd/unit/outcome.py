"""The outcome of a task: one of a closed set, derived from the unit's properties and the journal of its run.

A tender's exit status 1 has several causes (solo5's tenders/common and tenders/hvt), and so has SIGKILL. PID 1's
timestamps (was a stop requested first?) and the last lines of guest, tender and PID 1 (`unit.failure_messages`)
distinguish them. docs/outcomes.md has a row for each ending.
"""

import signal as signals
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from solo5_systemd.base.names import Target, UnitKind, prepare_service
from solo5_systemd.base.sanitize import MAX_QUOTE, bounded
from solo5_systemd.storage.model import FailedDisk
from solo5_systemd.unit.failure_messages import (
    ABORT,
    EXCEPTION,
    IMAGE_FILLS_MEMORY,
    NO_ROOM_TO_START,
    OUT_OF_MEMORY,
    PASSING,
    TRAP,
    TRAP_TYPE,
    ExitMessages,
    signal_name,
    tender_message,
)
from solo5_systemd.unit.state import MainCode, UnitState


class Ending(StrEnum):
    """The closed set of outcomes; each value is the `ending` of `--json` and of Nomad's event."""

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
    """The outcome of one run.

    Attributes:
        exit_code: the tender's exit status; None if a signal killed it or it never ran.
        signal: the signal that ended it, also where hvt caught it and exited with 1; None otherwise. A stop by the
            SIGHUP that systemd sends hvt is one by SIGTERM, as of any other service.
        futile: why a retry of the same task on the same host cannot help; empty if it can.
        memory_peak: bytes, of guest and tender together; None before systemd 256, which does not keep it after the end.
        last_lines: the last lines of the console, for outcomes that need an explanation.
        failed_disks: disks whose file system was full, or whose block device was gone, when the outcome was read.
    """

    ending: Ending
    exit_code: int | None = None
    signal: int | None = None
    sentence: str
    futile: str = ""
    memory_peak: int | None = None
    last_lines: Sequence[str] = ()
    failed_disks: Sequence[FailedDisk] = ()

    @property
    def retry(self) -> bool:
        """Return whether a retry can help."""
        return not self.futile

    @property
    def clean(self) -> bool:
        """Return whether the guest exited with 0, or the stop was requested."""
        return self.ending in REQUESTED or (self.ending is Ending.EXITED and self.exit_code == 0)

    @property
    def plain(self) -> bool:
        """Return whether exit code and signal are enough, so that Nomad needs no exit message."""
        return self.clean or (self.ending is Ending.EXITED and self.retry and not self.failed_disks)

    @property
    def verdict(self) -> str:
        """Return the sentence, with the reason why a retry cannot help after a failure that would recur."""
        return self.sentence if self.clean or self.retry else f"{self.sentence}; a retry cannot help: {self.futile}"

    @property
    def fails_at_start(self) -> bool:
        """Return whether a restart would fail again in the same way, whatever the host does.

        systemd restarts a service by its exit status alone (Restart=). This is true only of a guest that was not
        entered, or came no further than its first lines. Other outcomes that cannot get better may be the end of a long
        run: a guest whose memory has leaked is to be started again.
        """
        at_the_start = self.ending in (Ending.TENDER_REFUSED, Ending.GUEST_OUT_OF_MEMORY) and not self.retry
        return at_the_start and not any(error in self.sentence for error in PASSING)

    @property
    def shell_status(self) -> int:
        """Return the exit status of `solo5ctl run` and `wait`: the guest's, 128+N for a signal, 126 for a refusal."""
        if self.ending in (Ending.TENDER_REFUSED, Ending.NOT_STARTED):
            return 126
        if self.signal is not None:
            return 128 + self.signal
        return 125 if self.exit_code is None else self.exit_code

    @property
    def by_disk(self) -> bool:
        """Return whether an error of a disk may be the cause: spt's guest gets it, and ends as it likes."""
        guests = (Ending.EXITED, Ending.ABORTED, Ending.TRAPPED)
        return self.ending is Ending.TENDER_FAILED or (self.ending in guests and not self.clean)


REQUESTED = (Ending.STOPPED, Ending.HOST_SHUTDOWN)

STOP_REQUESTED = "the stop was requested"
_EXPLAINED: Mapping[int, tuple[str, str]] = {
    63: (" (--help or --version in its arguments)", "its arguments have to change"),
    64: (" (invalid arguments)", "its arguments have to change"),
}
"""Exit statuses of mirage-runtime: the explanation to append, and why a retry cannot help."""

EXIT_UNCAUGHT = 2
"""Exit status of an OCaml program after an exception that no function caught."""

_NOT_AGAIN: Mapping[int, str] = {
    208: "its disk locks were released when its first run ended",  # EXIT_STDIN
    226: "its image or a disk is gone; a private disk ends with its first run",  # EXIT_NAMESPACE
}
"""Exit statuses of a task that is started again with what it lacks then (systemd.exec(5))."""

_GUEST_FAULTS = (signals.SIGSEGV, signals.SIGILL, signals.SIGBUS, signals.SIGFPE, signals.SIGTRAP)
_LIMITS = ("timeout", "watchdog")
_STOP_SIGNALS = (signals.SIGINT, signals.SIGTERM)
_PEAK_MARGIN = 1 << 20
"""Bytes. A MemoryPeak= further than this below MemoryMax= means that another limit caused the OOM kill."""


def is_unambiguous(state: UnitState) -> bool:
    """Return whether the outcome follows from the unit alone, without the journal: an exit with 0, or a stop."""
    if state.main_code == MainCode.EXITED:
        return state.main_status == 0 or (_stop_caught(state) and state.result not in _LIMITS)
    if state.main_code in (MainCode.KILLED, MainCode.DUMPED) and state.stop_requested:
        plain = _final_signal(state) in _STOP_SIGNALS and state.result not in _LIMITS
        return plain or state.main_status == signals.SIGKILL
    return state.main_code == MainCode.NONE


def outcome(state: UnitState, messages: ExitMessages = ExitMessages(), *, shutting_down: bool = False) -> Outcome:
    """Return the outcome of a unit that is over.

    Args:
        messages: the last lines of the run; without them an ambiguous end gets the more likely outcome.
        shutting_down: PID 1's SystemState is `stopping`.
    """
    found = _outcome(state, messages)
    if found.ending is Ending.STOPPED and state.stop_requested and shutting_down:
        found = replace(found, ending=Ending.HOST_SHUTDOWN, sentence="stopped by the host's shutdown", futile="")
    return replace(found, memory_peak=state.memory_peak, last_lines=tuple(messages.console))


def with_failed_disks(found: Outcome, disks: Sequence[FailedDisk]) -> Outcome:
    """Return an outcome with the disks on full file systems, or without their device: a tender has ENOSPC of either."""
    named = {disk: f"disk {disk.disk} ({bounded(disk.path, MAX_QUOTE)})" for disk in disks}
    full, lost = ([named[disk] for disk in disks if (disk.free is None) is gone] for gone in (False, True))
    parts = [f"no space is left in the file system of {' and of '.join(full)}"] if full else []
    if lost:
        device, be = ("devices", "are") if len(lost) > 1 else ("device", "is")
        parts.append(f"the {device} of {' and '.join(lost)} {be} gone")
    return replace(found, sentence="; ".join((found.sentence, *parts)), failed_disks=tuple(disks)) if parts else found


def _outcome(state: UnitState, messages: ExitMessages) -> Outcome:
    by_sigkill = state.main_code != MainCode.EXITED and state.main_status == signals.SIGKILL
    # Result= misses an OOM kill that PID 1 notices after the exit; its message does not.
    if state.result == "oom-kill" or (messages.oom_killed and by_sigkill):
        return _out_of_memory(state)
    if state.kind is UnitKind.SCOPE and state.main_code == MainCode.NONE:
        return Outcome(
            ending=Ending.UNKNOWN,
            sentence="ended; exit status unknown: systemd does not reap the processes of a scope",
        )
    match state.main_code:
        case MainCode.EXITED:
            return replace(_exited(state, messages), exit_code=state.main_status)
        case MainCode.KILLED | MainCode.DUMPED:
            found = _killed(state, messages)
            return replace(found, signal=found.signal or _final_signal(state))
        case _:
            return _never_ran(state)


def _out_of_memory(state: UnitState) -> Outcome:
    """Return the outcome of an OOM kill; MemoryPeak= decides between the task's limit and one above it."""
    peak, limit = state.memory_peak, state.memory_max
    futile = ""
    if peak is None or limit is None:
        cause = "not enough memory for guest and tender"
    elif peak > limit - _PEAK_MARGIN:
        cause, futile = f"guest and tender needed more than the task's {_mib(limit)}", "its memory has to be raised"
    else:
        cause = f"the host or a slice ran out of memory; the task used {_mib(peak)} of its {_mib(limit)}"
    return Outcome(ending=Ending.OUT_OF_MEMORY, signal=signals.SIGKILL, sentence=f"OOM-killed: {cause}", futile=futile)


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.1f}".removesuffix(".0") + " MiB"


# --- exit statuses -----------------------------------------------------------------------------------------


def _exited(state: UnitState, messages: ExitMessages) -> Outcome:
    status = state.main_status
    if not state.executed:
        sentence, futile = f"systemd could not execute the tender ({status})", "the unit or the host has to change"
        if again := _NOT_AGAIN.get(status):
            sentence, futile = f"not started again: {again}", "remove the task, and start it with solo5ctl or Nomad"
        return Outcome(ending=Ending.NOT_STARTED, sentence=sentence, futile=futile)
    if status == 1:
        return _exited_1(state, messages)
    # Before the abort: a runtime without memory ends with 255, too.
    memory = _exhausted(state, messages) if status in (EXIT_UNCAUGHT, 255) else None
    if memory is not None:
        return memory
    return _aborted(messages) if status == 255 else _guest_exited(status, messages.guest_line(EXCEPTION))


def _guest_exited(status: int, exception: str | None = None) -> Outcome:
    meaning, futile = _EXPLAINED.get(status, ("", "" if status else "nothing failed"))
    if status == EXIT_UNCAUGHT and exception:
        meaning = f": {exception}"
    return Outcome(ending=Ending.EXITED, sentence=f"the guest exited with {status}{meaning}", futile=futile)


def _exited_1(state: UnitState, messages: ExitMessages) -> Outcome:
    """Return the outcome of exit status 1: hvt after a stop signal or a failure, or a guest's own status."""
    number = messages.caught_signal
    if _stop_caught(state) and state.result not in _LIMITS:  # the journal, which names the signal, may not be read
        return Outcome(
            ending=Ending.STOPPED,
            signal=number or signals.SIGTERM,
            sentence="stopped on request",
            futile=STOP_REQUESTED,
        )
    if number is not None:
        return replace(_signalled(state, number, messages), signal=number)
    # A tender that fails writes its reason to stderr.
    return _tender_error(messages) if messages.tender else _guest_exited(1)


def _stop_caught(state: UnitState) -> bool:
    """Return whether hvt caught the signal of a requested stop: it exits with 1 then."""
    return state.stop_requested and state.main_status == 1 and state.tender != Target.SPT


def _exhausted(state: UnitState, messages: ExitMessages) -> Outcome | None:
    """Return the outcome of a guest without free memory, or None: OCaml exits with 2, or aborts."""
    futile, status = "", state.main_status
    line = messages.guest_line(OUT_OF_MEMORY)
    if status == 255 and (full := messages.guest_line(IMAGE_FILLS_MEMORY)):
        line, futile = full, "its image alone fills its memory, which has to be raised"
    elif early := messages.guest_line(NO_ROOM_TO_START):
        has = f" the {_mib(state.memory_max)} of the task" if state.memory_max else " the task has"
        line, futile = early, f"its runtime needs more memory than{has}: raise it"
    if line is None:
        return None
    return Outcome(
        ending=Ending.GUEST_OUT_OF_MEMORY,
        sentence=f"the guest ran out of its own memory: {line}",
        futile=futile,
    )


def _aborted(messages: ExitMessages) -> Outcome:
    if trap := messages.guest_line(TRAP_TYPE) or messages.guest_line(TRAP):
        return Outcome(ending=Ending.TRAPPED, sentence=f"the guest trapped: {trap}")
    after = f" after “{messages.before_abort}”" if messages.before_abort else ""
    abort = messages.guest_line(ABORT)
    text = f": {abort}" if abort else ""
    return Outcome(ending=Ending.ABORTED, sentence=f"the guest aborted{after}{text}")


def _tender_error(messages: ExitMessages) -> Outcome:
    """Return the outcome of a tender that has ended with an error, before or after it entered the guest."""
    text = tender_message(messages.tender)
    if messages.guest_entered:
        ending, sentence, futile = Ending.TENDER_FAILED, f"the tender failed: {text}", ""
    else:
        ending, sentence = Ending.TENDER_REFUSED, f"the tender refused: {text}"
        futile = "image, arguments, devices or host have to change"
    return Outcome(ending=ending, sentence=sentence, futile=futile)


# --- signals -----------------------------------------------------------------------------------------


def _final_signal(state: UnitState) -> int:
    """Return the signal that killed the tender: SIGTERM in the place of the KillSignal= that hvt has instead."""
    by_systemd = state.stop_requested or state.result in _LIMITS
    return signals.SIGTERM if state.main_status == signals.SIGHUP and by_systemd else state.main_status


def _killed(state: UnitState, messages: ExitMessages) -> Outcome:
    number = _final_signal(state)
    if number == signals.SIGHUP and messages.idle:
        return Outcome(ending=Ending.STOPPED, sentence="ended until its next packet", futile=STOP_REQUESTED)
    if number == signals.SIGHUP and messages.sent_by_systemd(number):
        return _stopped(signals.SIGTERM)
    # First, since a stop that ends with SIGKILL has the result "timeout" too; RuntimeMaxSec= sends SIGTERM first.
    if state.stop_requested and number == signals.SIGKILL:
        return _stopped(number)
    if state.result in _LIMITS or number in _STOP_SIGNALS:
        return _signalled(state, number, messages)
    if number == signals.SIGKILL and messages.hung:
        return Outcome(ending=Ending.STALLED, sentence="killed: the tender hung, its main thread a zombie")
    if number == signals.SIGABRT and messages.assertion_failed:
        return _tender_error(messages)
    if number == signals.SIGSYS or number in _GUEST_FAULTS:
        return _faulted(state, number)
    return _killed_by(number, messages)


def _signalled(state: UnitState, number: int, messages: ExitMessages) -> Outcome:
    """Return the outcome of INT, TERM or a unit limit: STOPPED if systemd sent the signal, or may have."""
    if state.result in _LIMITS:
        sentence = f"ended by systemd: {state.result} ({signal_name(number)})"
        return Outcome(ending=Ending.TIMED_OUT, sentence=sentence)
    by_systemd = state.stop_requested or messages.sent_by_systemd(number) is not False
    return _stopped(number) if by_systemd else _killed_by(number, messages)


def _stopped(number: int) -> Outcome:
    sentence = f"stopped on request ({signal_name(number)})"
    return Outcome(ending=Ending.STOPPED, signal=number, sentence=sentence, futile=STOP_REQUESTED)


_RLIMIT: Mapping[int, str] = {signals.SIGXFSZ: "LimitFSIZE=", signals.SIGXCPU: "LimitCPU="}


def _killed_by(number: int, messages: ExitMessages) -> Outcome:
    if number in _RLIMIT:
        why = f": it reached {_RLIMIT[number]}"
    else:
        origin = {True: ", which systemd sent on request", False: ", which systemd did not send", None: ""}
        why = origin[messages.sent_by_systemd(number)]
    return Outcome(ending=Ending.KILLED, sentence=f"killed by {signal_name(number)}{why}")


def _faulted(state: UnitState, number: int) -> Outcome:
    """Return the outcome of a fault: spt's process executes the guest, hvt's faults are its own."""
    name = signal_name(number)
    if number == signals.SIGSYS:
        culprit = "tender" if state.tender == Target.HVT else "guest"
        return Outcome(
            ending=Ending.FORBIDDEN_CALL,
            sentence=f"killed: the {culprit} made a forbidden system call",
            futile="it would make the same call again",
        )
    if state.tender == Target.HVT:
        return Outcome(ending=Ending.TENDER_FAILED, sentence=f"the tender failed: it crashed ({name})")
    return Outcome(ending=Ending.TRAPPED, sentence=f"the guest trapped ({name})")


def _never_ran(state: UnitState) -> Outcome:
    if state.started:
        return Outcome(
            ending=Ending.UNKNOWN, sentence="ended; its unit was unloaded before its exit status could be read"
        )
    if state.result == "resources":
        return Outcome(ending=Ending.NOT_STARTED, sentence="systemd could not set the unit up (resources)")
    if state.is_untried:
        reason = f"its preparation has failed: systemctl status {prepare_service(state.task)}"
    else:
        reason = "its network could not be attached"
    return Outcome(ending=Ending.NOT_STARTED, sentence=f"not started: {reason}")
