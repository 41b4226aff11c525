"""The outcome of each combination of unit properties and messages."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from solo5_systemd.base.names import TaskName, task_scope, task_service
from solo5_systemd.storage.model import FailedDisk
from solo5_systemd.unit.failure_messages import ExitMessages, UnitMessage
from solo5_systemd.unit.outcome import Ending, is_unambiguous, outcome, with_failed_disks
from solo5_systemd.unit.state import ActiveState, MainCode, UnitState

MIB = 1 << 20
WEB = TaskName("web")
ENDED = UnitState(
    task=WEB,
    unit=task_service(WEB),
    active=ActiveState.FAILED,
    result="exit-code",
    main_code=MainCode.EXITED,
    started=1,
    main_exit=50,
    active_exit=50,
    log_fields={"SOLO5_TENDER": "hvt"},
)


def exited(status: int, result: str = "exit-code") -> UnitState:
    return ENDED._replace(main_status=status, result="success" if status == 0 else result)


def killed(number: int, result: str = "signal", code: int = MainCode.KILLED) -> UnitState:
    return ENDED._replace(main_code=code, main_status=number, result=result)


def stop(state: UnitState) -> UnitState:
    return state._replace(active_exit=state.main_exit - 1)


def spt(state: UnitState) -> UnitState:
    return state._replace(log_fields={"SOLO5_TENDER": "spt"})


def memory(state: UnitState, peak: int, limit: int = 64 * MIB) -> UnitState:
    return state._replace(memory_peak=peak, memory_max=limit)


def sent(name: str) -> UnitMessage:
    return UnitMessage(f"solo5-task-web.service: Sent signal {name} to main process 68 (solo5-spt) on client request.")


@dataclass(frozen=True)
class Row:
    state: UnitState
    ending: Ending
    sentence: str
    shell: int
    clean: bool = False
    guest: tuple[str, ...] = ()
    tender: tuple[str, ...] = ()
    systemd: tuple[UnitMessage, ...] = ()
    hung: bool = False
    idle: bool = False
    down: bool = False
    code: int | None = None
    signal: int | None = None
    futile: str = ""
    claim: str = field(default="", kw_only=True)


def stopped(state: UnitState, sentence: str = "stopped on request (SIGTERM)", signal: int = 15, **more: Any) -> Row:
    """Return the row of a requested stop: no failure, which no retry follows."""
    return Row(state, Ending.STOPPED, sentence, 128 + signal, True, signal=signal, futile=STOP_REQUESTED, **more)


HELLO = ("Hello, World",)
BEGUN = (UnitMessage("Started solo5-task-web.service - killed by the OOM killer.", "39f53479d3a045ac8e11786248231fbf"),)
CAUGHT = ("solo5-hvt: Exiting on signal 15",)
NOT_FAILED, STOP_REQUESTED = "nothing failed", "the stop was requested"
CHANGE = "image, arguments, devices or host have to change"
MORE = "its memory has to be raised"
SENT_NOT = ", which systemd did not send"
OCAML = (
    ("Fatal error: Not enough heap memory to reserve minor heaps", True),
    ("Fatal error: Fatal error: No memory for minor heap", False),
    ("Fatal error: cannot allocate initial major heap", True),
    ("Fatal error: not enough memory for initial page table", True),
    ("Fatal error: Failed to allocate all_domains", True),
    ("Fatal error: Failed to create main domain", True),
    ("Fatal error: allocation failure during minor GC", False),
    ("Fatal error: not enough memory", False),
    ("Fatal error: not enough memory for the mark stack", False),
    ("Fatal error: exception Out of memory", False),
)
OOM_LINE = "solo5-task-web.service: A process of this unit has been killed by the OOM killer."
ROWS = [
    # the guest's own
    Row(exited(0), Ending.EXITED, "the guest exited with 0", 0, True, code=0, futile=NOT_FAILED),
    Row(
        exited(0), Ending.EXITED, "the guest exited with 0", 0, True, HELLO, ("solo5-hvt: a warning",), code=0,
        futile=NOT_FAILED, claim="whatever the messages are",
    ),
    Row(exited(1), Ending.EXITED, "the guest exited with 1", 1, guest=HELLO, code=1),
    Row(stop(spt(exited(1))), Ending.EXITED, "the guest exited with 1", 1, code=1, claim="spt dies of a stop"),
    Row(exited(1), Ending.EXITED, "the guest exited with 1", 1, guest=CAUGHT, code=1, claim="a guest is no tender"),
    Row(exited(2), Ending.EXITED, "the guest exited with 2", 2, guest=("about exception Out_of_memory",), code=2),
    Row(exited(3), Ending.EXITED, "the guest exited with 3", 3, code=3),
    Row(
        exited(9), Ending.EXITED, "the guest exited with 9", 9, code=9,
        systemd=(UnitMessage(OOM_LINE, "fe6faa94e7774663a0da52717891d8ef"),), claim="9 is no SIGKILL",
    ),
    Row(exited(203), Ending.EXITED, "the guest exited with 203", 203, code=203, claim="a guest's own 203"),
    Row(
        exited(63), Ending.EXITED, "the guest exited with 63 (--help or --version in its arguments)", 63, code=63,
        futile="its arguments have to change",
    ),
    Row(
        exited(64), Ending.EXITED, "the guest exited with 64 (invalid arguments)", 64, code=64,
        futile="its arguments have to change",
    ),
    Row(exited(255), Ending.ABORTED, "the guest aborted", 255, guest=HELLO, code=255),
    Row(
        exited(255), Ending.ABORTED, "the guest aborted after “x”: Solo5: solo5_abort() called", 255,
        guest=("Solo5: Memory map", "x", "", "Solo5: solo5_abort() called"), code=255,
    ),
    Row(
        exited(255), Ending.ABORTED, "the guest aborted: Solo5: solo5_abort() called", 255,
        guest=("Solo5: Memory map", "Solo5: solo5_abort() called"), code=255,
        claim="a line of Solo5's is none of the guest's",
    ),
    Row(
        exited(2), Ending.EXITED, "the guest exited with 2: Fatal error: exception Not_found", 2,
        guest=("Fatal error: exception Not_found", "Raised at Main.f", "Solo5: solo5_exit(2) called"), code=2,
    ),
    Row(
        exited(255), Ending.TRAPPED, "the guest trapped: Solo5: trap: type=#PF ec=0x0", 255,
        guest=("Solo5: trap: type=#PF ec=0x0 ", "Solo5: ABORT: cpu.c:1: Fatal trap"), code=255,
    ),
    Row(spt(killed(11)), Ending.TRAPPED, "the guest trapped (SIGSEGV)", 139, signal=11),
    Row(stop(spt(killed(11))), Ending.TRAPPED, "the guest trapped (SIGSEGV)", 139, signal=11),
    Row(spt(killed(4, code=MainCode.DUMPED)), Ending.TRAPPED, "the guest trapped (SIGILL)", 132, signal=4),
    Row(
        exited(2), Ending.GUEST_OUT_OF_MEMORY,
        "the guest ran out of its own memory: Fatal error: exception Out_of_memory", 2,
        guest=("Fatal error: exception Out_of_memory", "Solo5: solo5_exit(2) called"), code=2,
    ),
    Row(
        exited(255), Ending.GUEST_OUT_OF_MEMORY, "the guest ran out of its own memory: Fatal error: out of memory", 255,
        guest=("Fatal error: out of memory", "Solo5: solo5_abort() called"), code=255,
    ),
    *(
        Row(
            exited(255), Ending.GUEST_OUT_OF_MEMORY, f"the guest ran out of its own memory: {line}", 255,
            guest=(line, "Solo5: solo5_abort() called"), code=255,
            futile="its runtime needs more memory than the task has: raise it" if at_start else "", claim=line,
        )
        for line, at_start in OCAML
    ),
    Row(
        exited(255)._replace(memory_max=16 << 20), Ending.GUEST_OUT_OF_MEMORY,
        f"the guest ran out of its own memory: {OCAML[0][0]}", 255, guest=(OCAML[0][0],), code=255,
        futile="its runtime needs more memory than the 16 MiB of the task: raise it",
    ),
    Row(
        exited(255), Ending.GUEST_OUT_OF_MEMORY,
        "the guest ran out of its own memory: Solo5: ABORT: mem.c:54: Not enough memory", 255,
        guest=("Solo5: ABORT: mem.c:54: Not enough memory",), code=255,
        futile="its image alone fills its memory, which has to be raised",
    ),
    Row(
        exited(3), Ending.EXITED, "the guest exited with 3", 3, guest=("Fatal error: exception Out_of_memory",), code=3,
        claim="a guest that has caught it",
    ),
    # stopped
    stopped(stop(exited(1)), "stopped on request", code=1),
    stopped(
        stop(exited(1)), "stopped on request", guest=HELLO, code=1, claim="an error after a stop is not a failure",
        tender=("solo5-hvt: Fatal error when writing: Input/output error",),
    ),
    stopped(exited(1), guest=HELLO, tender=CAUGHT, code=1, claim="hvt, and PID 1's messages cannot be read"),
    stopped(
        exited(1), "stopped on request (SIGINT)", 2, tender=("Exiting on signal 2", ""),
        systemd=(*BEGUN, sent("SIGINT")), code=1,
    ),
    stopped(spt(killed(15))),
    stopped(spt(killed(2)), "stopped on request (SIGINT)", 2, systemd=(*BEGUN, sent("SIGINT"))),
    stopped(stop(spt(killed(15))), systemd=BEGUN),
    stopped(stop(killed(1, "success")), claim="hvt's KillSignal="),
    Row(killed(1), Ending.KILLED, f"killed by SIGHUP{SENT_NOT}", 129, systemd=BEGUN, signal=1),
    stopped(killed(1), systemd=(*BEGUN, sent("SIGHUP")), claim="an idle task, before the message of solo5-networkd"),
    stopped(killed(1), "ended until its next packet", 1, systemd=BEGUN, idle=True, claim="the same, by that message"),
    stopped(stop(killed(9)), "stopped on request (SIGKILL)", 9),
    stopped(stop(killed(9, "timeout")), "stopped on request (SIGKILL)", 9, claim="a stop that ended with SIGKILL"),
    Row(
        stop(exited(1)), Ending.HOST_SHUTDOWN, "stopped by the host's shutdown", 143, True, down=True, code=1,
        signal=15,
    ),
    Row(
        stop(spt(killed(15))), Ending.HOST_SHUTDOWN, "stopped by the host's shutdown", 143, True, down=True,
        signal=15,
    ),
    Row(exited(3), Ending.EXITED, "the guest exited with 3", 3, down=True, code=3, claim="an end of its own meanwhile"),
    # killed
    Row(spt(killed(15)), Ending.KILLED, f"killed by SIGTERM{SENT_NOT}", 143, systemd=BEGUN, signal=15),
    Row(
        exited(1), Ending.KILLED, f"killed by SIGTERM{SENT_NOT}", 143, guest=HELLO, tender=CAUGHT, systemd=BEGUN,
        code=1, signal=15,
    ),
    Row(killed(9), Ending.KILLED, "killed by SIGKILL", 137, signal=9),
    Row(killed(9), Ending.KILLED, f"killed by SIGKILL{SENT_NOT}", 137, systemd=BEGUN, signal=9),
    Row(
        killed(9), Ending.KILLED, "killed by SIGKILL, which systemd sent on request", 137,
        systemd=(*BEGUN, sent("SIGKILL")), signal=9,
    ),
    Row(
        killed(9), Ending.KILLED, "killed by SIGKILL, which systemd sent on request", 137,
        systemd=(UnitMessage("solo5-task-web.service: Killed unit cgroup with SIGKILL on client request."),), signal=9,
    ),
    Row(killed(6, code=MainCode.DUMPED), Ending.KILLED, "killed by SIGABRT", 134, signal=6),
    Row(killed(34), Ending.KILLED, "killed by SIGRTMIN", 162, signal=34),
    Row(killed(25), Ending.KILLED, "killed by SIGXFSZ: it reached LimitFSIZE=", 153, systemd=BEGUN, signal=25),
    Row(killed(63), Ending.KILLED, "killed by signal 63", 191, signal=63),
    Row(killed(9), Ending.STALLED, "killed: the tender hung, its main thread a zombie", 137, hung=True, signal=9),
    Row(stop(exited(0)), Ending.EXITED, "the guest exited with 0", 0, True, code=0, futile=NOT_FAILED),
    # the host's memory
    Row(killed(9, "oom-kill"), Ending.OUT_OF_MEMORY,
        "OOM-killed: not enough memory for guest and tender", 137, signal=9),
    Row(memory(killed(9, "oom-kill"), 64 * MIB), Ending.OUT_OF_MEMORY,
        "OOM-killed: guest and tender needed more than the task's 64 MiB", 137, signal=9, futile=MORE),
    Row(
        memory(stop(exited(1, "oom-kill")), 41 * MIB // 2), Ending.OUT_OF_MEMORY,
        "OOM-killed: the host or a slice ran out of memory; the task used 20.5 MiB of its 64 MiB", 137,
        signal=9,
    ),
    Row(killed(9), Ending.OUT_OF_MEMORY, "OOM-killed: not enough memory for guest and tender", 137,
        systemd=(*BEGUN, UnitMessage(OOM_LINE, "fe6faa94e7774663a0da52717891d8ef")), signal=9,
        claim="PID 1 saw the end before the reason"),
    Row(killed(9), Ending.KILLED, "killed by SIGKILL", 137, guest=(OOM_LINE,), signal=9, claim="a guest is not PID 1"),
    # the tender's
    Row(
        exited(1), Ending.TENDER_REFUSED, "the tender refused: /dev/kvm: Permission denied", 126,
        tender=("solo5-hvt: adjusting memory to 2097152 bytes", "solo5-hvt: /dev/kvm: Permission denied", "usage: …"),
        code=1, futile=CHANGE,
    ),
    Row(
        spt(killed(6)), Ending.TENDER_REFUSED,
        "the tender refused: spt_main.c:7: setup: Assertion `rc == 0' failed.", 126,
        tender=("solo5-spt: spt_main.c:7: setup: Assertion `rc == 0' failed.",), signal=6, futile=CHANGE,
    ),
    Row(
        killed(6), Ending.TENDER_FAILED, "the tender failed: hvt.c:7: run: Assertion `rc == 0' failed.", 134,
        guest=HELLO, tender=("solo5-hvt: hvt.c:7: run: Assertion `rc == 0' failed.",), signal=6,
    ),
    Row(
        exited(1), Ending.TENDER_FAILED, "the tender failed: Fatal error when writing: No space left on device", 1,
        guest=HELLO, tender=("solo5-hvt: a warning", "Fatal error when writing: No space left on device"), code=1,
    ),
    Row(
        exited(1), Ending.TENDER_FAILED, "the tender failed: Fatal write error on net device: Input/output error", 1,
        tender=("solo5-hvt: Fatal write error on net device: Input/output error",), code=1, claim="of a quiet guest",
    ),
    Row(killed(11), Ending.TENDER_FAILED, "the tender failed: it crashed (SIGSEGV)", 139, signal=11),
    Row(
        spt(killed(31, "core-dump", MainCode.DUMPED)), Ending.FORBIDDEN_CALL,
        "killed: the guest made a forbidden system call", 159, signal=31, futile="it would make the same call again",
    ),
    Row(
        killed(31), Ending.FORBIDDEN_CALL, "killed: the tender made a forbidden system call", 159, signal=31,
        futile="it would make the same call again",
    ),
    # systemd's
    Row(
        exited(203)._replace(active_exit=0), Ending.NOT_STARTED, "systemd could not execute the tender (203)", 126,
        code=203, futile="the unit or the host has to change",
    ),
    Row(
        exited(208)._replace(active_exit=0), Ending.NOT_STARTED,
        "not started again: its disk locks were released when its first run ended", 126, code=208,
        futile="remove the task, and start it with solo5ctl or Nomad",
    ),
    Row(
        exited(208)._replace(active_exit=50, main_start=60), Ending.NOT_STARTED,
        "not started again: its disk locks were released when its first run ended", 126, code=208,
        futile="remove the task, and start it with solo5ctl or Nomad", claim="it was active in an earlier run",
    ),
    Row(
        exited(226)._replace(active_exit=0), Ending.NOT_STARTED,
        "not started again: its image or a disk is gone; a private disk ends with its first run", 126, code=226,
        futile="remove the task, and start it with solo5ctl or Nomad",
    ),
    Row(exited(226), Ending.EXITED, "the guest exited with 226", 226, code=226, claim="a guest's own 226"),
    Row(exited(208), Ending.EXITED, "the guest exited with 208", 208, code=208, claim="a guest's own 208"),
    Row(stop(killed(15, "timeout")), Ending.TIMED_OUT, "ended by systemd: timeout (SIGTERM)", 143, signal=15),
    Row(stop(killed(1, "timeout")), Ending.TIMED_OUT, "ended by systemd: timeout (SIGTERM)", 143, signal=15),
    Row(killed(9, "timeout"), Ending.TIMED_OUT, "ended by systemd: timeout (SIGKILL)", 137, signal=9),
    Row(
        stop(exited(1, "timeout")), Ending.TIMED_OUT, "ended by systemd: timeout (SIGTERM)", 143, tender=CAUGHT,
        code=1, signal=15, claim="RuntimeMaxSec= under hvt",
    ),
    Row(killed(6, "watchdog"), Ending.TIMED_OUT, "ended by systemd: watchdog (SIGABRT)", 134, signal=6),
    Row(
        ENDED._replace(main_code=MainCode.NONE, started=0, result="resources"), Ending.NOT_STARTED,
        "systemd could not set the unit up (resources)", 126,
    ),
    Row(
        ENDED._replace(main_code=MainCode.NONE, started=0, result="success"), Ending.NOT_STARTED,
        "not started: its network could not be attached", 126,
    ),
    Row(
        ENDED._replace(unit="web.service", main_code=MainCode.NONE, started=0, result="success"), Ending.NOT_STARTED,
        "not started: its preparation has failed: systemctl status solo5-prepare@web.service", 126,
    ),
    Row(
        ENDED._replace(main_code=MainCode.NONE), Ending.UNKNOWN,
        "ended; its unit was unloaded before its exit status could be read", 125,
    ),
    Row(
        ENDED._replace(unit=task_scope(WEB), main_code=MainCode.NONE), Ending.UNKNOWN,
        "ended; exit status unknown: systemd does not reap the processes of a scope", 125,
    ),
]  # fmt: skip


OF_GUEST_OR_TENDER = (Ending.TENDER_FAILED, Ending.ABORTED, Ending.TRAPPED, Ending.EXITED)
"""Endings of which an error of a disk may be the cause."""


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.claim or row.sentence)
def test_the_outcome_follows_from_unit_and_messages(row: Row) -> None:
    messages = ExitMessages(guest=row.guest, tender=row.tender, systemd=row.systemd, hung=row.hung, idle=row.idle)
    found = outcome(row.state, messages, shutting_down=row.down)
    assert (found.ending, found.sentence, found.futile) == (row.ending, row.sentence, row.futile)
    assert (found.exit_code, found.signal) == (row.code, row.signal)
    assert (found.shell_status, found.clean, found.retry) == (row.shell, row.clean, not row.futile)
    assert found.by_disk is (row.ending in OF_GUEST_OR_TENDER and not row.clean)
    if is_unambiguous(row.state):
        assert outcome(row.state, shutting_down=row.down) == found, "it needs no messages"


def test_every_ending_has_its_row() -> None:
    assert {row.ending for row in ROWS} == set(Ending)


ALONE = [
    exited(0),
    stop(exited(1)),
    stop(spt(killed(15))),
    stop(killed(1)),
    stop(killed(9)),
    ENDED._replace(main_code=0),
]
WITH_MESSAGES = [exited(1), exited(3), killed(1), killed(9), spt(killed(15)), stop(spt(killed(11)))]


@pytest.mark.parametrize("state", [*ALONE, *WITH_MESSAGES])
def test_an_exit_with_0_and_a_stop_are_unambiguous_and_failures_and_foreign_signals_are_not(state: UnitState) -> None:
    assert is_unambiguous(state) is (state in ALONE)


def test_an_outcome_brings_the_consoles_end_and_the_peak() -> None:
    found = outcome(memory(exited(3), 5 * MIB), ExitMessages(console=("Hello", "solo5-hvt: a warning")))
    assert (found.last_lines, found.memory_peak) == (("Hello", "solo5-hvt: a warning"), 5 * MIB)


@pytest.mark.parametrize(
    ("free", "one", "both"),
    [
        (0, "no space is left in the file system of {}", "no space is left in the file system of {} and of {}"),
        (None, "the device of {} is gone", "the devices of {} and {} are gone"),
    ],
    ids=["full", "gone"],
)
def test_an_outcome_names_the_disks_that_may_be_its_cause(free: int | None, one: str, both: str) -> None:
    """A fact beside the outcome: a failure of a guest has a message then."""
    data, logs = (FailedDisk(task="web", disk=name, path=f"/srv/{name}.img", free=free) for name in ("data", "logs"))
    shown = [f"disk {disk.disk} ({disk.path})" for disk in (data, logs)]
    failed = outcome(exited(3))
    found = with_failed_disks(failed, [data])
    assert found.sentence == f"the guest exited with 3; {one.format(*shown)}"
    assert (failed.plain, found.plain, found.failed_disks) == (True, False, (data,))
    assert with_failed_disks(failed, [data, logs]).sentence == f"the guest exited with 3; {both.format(*shown)}"
    assert with_failed_disks(failed, []) is failed
