"""A row for each ending: what PID 1 has on record and what the console said, and what that means."""

from dataclasses import dataclass, field, replace

import pytest

from solo5_systemd.names import TaskName, task_scope, task_service
from solo5_systemd.unit.outcome import Ending, LastWords, outcome, tender_message
from solo5_systemd.unit.state import ActiveState, MainCode, UnitState

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
    log_fields={},
)


def exited(status: int, result: str = "exit-code") -> UnitState:
    return replace(ENDED, main_status=status, result="success" if status == 0 else result)


def killed(number: int, result: str = "signal", code: int = MainCode.KILLED) -> UnitState:
    return replace(ENDED, main_code=code, main_status=number, result=result)


def asked(state: UnitState) -> UnitState:
    return replace(state, active_exit=state.main_exit - 1)


@dataclass(frozen=True)
class Row:
    state: UnitState
    ending: Ending
    sentence: str
    shell: int
    clean: bool = False
    guest: tuple[str, ...] = ()
    tender: tuple[str, ...] = ()
    code: int | None = None
    signal: int | None = None
    claim: str = field(default="", kw_only=True)


HELLO = ("Hello, World",)
ROWS = [
    Row(exited(0), Ending.EXITED, "the guest exited with 0", 0, True, code=0),
    Row(exited(0), Ending.EXITED, "the guest exited with 0", 0, True, HELLO, ("solo5-hvt: a warning",), code=0),
    Row(exited(3), Ending.EXITED, "the guest exited with 3", 3, code=3),
    Row(exited(203), Ending.EXITED, "the guest exited with 203", 203, code=203, claim="a guest's own 203"),
    Row(
        replace(exited(203), active_exit=0),
        Ending.NOT_STARTED,
        "systemd could not execute the tender (203)",
        126,
        code=203,
    ),
    Row(exited(1), Ending.EXITED, "the guest exited with 1", 1, guest=HELLO, code=1),
    Row(
        exited(1),
        Ending.STOPPED,
        "stopped on request (SIGTERM)",
        1,
        True,
        HELLO,
        ("solo5-hvt: Exiting on signal 15",),
        code=1,
    ),
    Row(exited(1), Ending.STOPPED, "stopped on request (SIGINT)", 1, True, (), ("Exiting on signal 2", ""), code=1),
    Row(asked(exited(1)), Ending.STOPPED, "stopped on request", 1, True, HELLO, code=1),
    Row(
        exited(1),
        Ending.EXITED,
        "the guest exited with 1",
        1,
        guest=("Exiting on signal 15",),
        code=1,
        claim="a guest cannot speak for the tender",
    ),
    Row(
        exited(1),
        Ending.TENDER_REFUSED,
        "the tender refused: /dev/kvm: Permission denied",
        126,
        tender=("solo5-hvt: /dev/kvm: Permission denied", "usage: …"),
        code=1,
    ),
    Row(
        asked(exited(1)),
        Ending.TENDER_FAILED,
        "the tender failed: unable to read",
        1,
        guest=HELLO,
        tender=("", "/usr/bin/solo5-spt: unable to read"),
        code=1,
    ),
    Row(
        exited(255),
        Ending.TRAPPED,
        "the guest trapped: Solo5: trap: type=#PF ec=0x0",
        255,
        guest=("Solo5: trap: type=#PF ec=0x0 ", "Solo5: ABORT: cpu.c:1"),
        code=255,
    ),
    Row(
        exited(255),
        Ending.ABORTED,
        "the guest aborted: Solo5: solo5_abort() called",
        255,
        guest=("x", "Solo5: solo5_abort() called"),
        code=255,
    ),
    Row(exited(255), Ending.ABORTED, "the guest aborted", 255, guest=HELLO, code=255),
    Row(
        killed(9, "oom-kill"),
        Ending.OUT_OF_MEMORY,
        "killed by the host: guest and tender needed more than the task's memory",
        137,
        signal=9,
    ),
    Row(
        asked(exited(1, "oom-kill")),
        Ending.OUT_OF_MEMORY,
        "killed by the host: guest and tender needed more than the task's memory",
        137,
        signal=9,
    ),
    Row(killed(15), Ending.STOPPED, "stopped on request (SIGTERM)", 143, True, signal=15),
    Row(killed(2), Ending.STOPPED, "stopped on request (SIGINT)", 130, True, signal=2),
    Row(asked(killed(9)), Ending.STOPPED, "stopped on request (SIGKILL)", 137, True, signal=9),
    Row(asked(killed(9, "timeout")), Ending.STOPPED, "stopped on request (SIGKILL)", 137, True, signal=9),
    Row(killed(9), Ending.KILLED, "killed by SIGKILL", 137, signal=9),
    Row(killed(6, code=MainCode.DUMPED), Ending.KILLED, "killed by SIGABRT", 134, signal=6),
    Row(killed(34), Ending.KILLED, "killed by SIGRTMIN", 162, signal=34),
    Row(killed(63), Ending.KILLED, "killed by signal 63", 191, signal=63),
    Row(asked(killed(15, "timeout")), Ending.TIMED_OUT, "ended by systemd: timeout (SIGTERM)", 143, signal=15),
    Row(killed(9, "timeout"), Ending.TIMED_OUT, "ended by systemd: timeout (SIGKILL)", 137, signal=9),
    Row(
        asked(exited(1, "timeout")),
        Ending.TIMED_OUT,
        "ended by systemd: timeout",
        1,
        tender=("solo5-hvt: Exiting on signal 15",),
        code=1,
        claim="RuntimeMaxSec= under hvt",
    ),
    Row(killed(6, "timeout"), Ending.TIMED_OUT, "ended by systemd: timeout (SIGABRT)", 134, signal=6),
    Row(killed(6, "watchdog"), Ending.TIMED_OUT, "ended by systemd: watchdog (SIGABRT)", 134, signal=6),
    Row(
        killed(31, "core-dump", MainCode.DUMPED),
        Ending.FORBIDDEN_CALL,
        "killed: the guest made a forbidden system call",
        159,
        signal=31,
    ),
    Row(killed(11), Ending.TRAPPED, "the guest trapped (SIGSEGV)", 139, signal=11),
    Row(asked(killed(11)), Ending.TRAPPED, "the guest trapped (SIGSEGV)", 139, signal=11),
    Row(killed(4, code=MainCode.DUMPED), Ending.TRAPPED, "the guest trapped (SIGILL)", 132, signal=4),
    Row(
        replace(ENDED, main_code=MainCode.NONE, started=0, result="resources"),
        Ending.NOT_STARTED,
        "systemd could not set the unit up (resources)",
        126,
    ),
    Row(
        replace(ENDED, main_code=MainCode.NONE, started=0, result="success"),
        Ending.NOT_STARTED,
        "never started: its network could not be attached",
        126,
    ),
    Row(
        replace(ENDED, main_code=MainCode.NONE),
        Ending.UNKNOWN,
        "ended; it was removed before systemd could be asked how",
        125,
    ),
    Row(
        replace(ENDED, unit=task_scope(WEB), main_code=MainCode.NONE),
        Ending.UNKNOWN,
        "ended; only its caller knows how, since it ran in a scope",
        125,
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.claim or row.sentence)
def test_an_ending_is_told_from_the_record_and_the_last_words(row: Row) -> None:
    found = outcome(row.state, LastWords(guest=row.guest, tender=row.tender))
    assert (found.ending, found.sentence) == (row.ending, row.sentence)
    assert (found.exit_code, found.signal) == (row.code, row.signal)
    assert (found.shell_status, found.clean) == (row.shell, row.clean)


def test_every_ending_has_its_row() -> None:
    assert {row.ending for row in ROWS} == set(Ending)


@pytest.mark.parametrize(
    "lines, message",
    [
        ([], ""),
        (["  ", ""], ""),
        (["solo5-hvt: no"], "no"),
        (["/opt/x/solo5-spt: no: solo5-spt: yes"], "no: solo5-spt: yes"),
        (["plain words"], "plain words"),
    ],
)
def test_a_tenders_message_is_its_first_line_without_its_name(lines: list[str], message: str) -> None:
    assert tender_message(lines) == message
