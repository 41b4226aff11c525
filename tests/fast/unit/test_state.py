import pytest

from solo5_systemd.base.names import TaskName, UnitKind
from solo5_systemd.unit.state import ActiveState, MainCode, UnitState, after_run, unit_state

SERVICE = "solo5-task-web.service"


def read(unit: str = SERVICE, **properties: object) -> UnitState:
    state = unit_state(unit, properties)
    assert state is not None
    return state


def test_a_service_is_read_from_what_systemd_sends() -> None:
    state = read(
        ActiveState="active",
        InvocationID=bytes(range(16)),
        FreezerState="running",
        JobType="",
        Result="success",
        MainPID=7,
        ExecMainCode=0,
        ExecMainStatus=0,
        ExecMainStartTimestamp=10,
        ExecMainExitTimestamp=20,
        ExecMainExitTimestampMonotonic=2,
        ActiveExitTimestampMonotonic=1,
        ControlGroup="/solo5.slice/x",
        LogExtraFields=[b"SOLO5_TASK=web", b"A=b=c", b"EMPTY=", b"none", b"RAW=\xff"],
    )
    assert state == UnitState(
        task=TaskName("web"),
        unit=SERVICE,
        active=ActiveState.ACTIVE,
        invocation="000102030405060708090a0b0c0d0e0f",
        main_pid=7,
        started=10,
        ended=20,
        main_exit=2,
        active_exit=1,
        control_group="/solo5.slice/x",
        log_fields={"SOLO5_TASK": "web", "A": "b=c", "EMPTY": "", "RAW": "\ufffd"},
    )


def test_a_service_is_a_service_and_a_scope_lacks_most_of_it() -> None:
    assert read().kind is UnitKind.SERVICE
    state = read("solo5-task-web.scope", ActiveState="active", ControlGroup="/x")
    assert (state.kind, state.main_pid, state.result, state.log_fields) == (UnitKind.SCOPE, 0, "success", {})


@pytest.mark.parametrize(
    "active, job, expected, over",
    [
        ("active", "", ActiveState.ACTIVE, False),
        ("activating", "start", ActiveState.ACTIVATING, False),
        ("deactivating", "stop", ActiveState.DEACTIVATING, False),
        ("inactive", "", ActiveState.INACTIVE, True),
        ("failed", "", ActiveState.FAILED, True),
        ("inactive", "start", ActiveState.ACTIVATING, False),  # its network comes first
        ("failed", "restart", ActiveState.ACTIVATING, False),
        ("inactive", "stop", ActiveState.INACTIVE, True),
        ("refreshing", "", ActiveState.UNKNOWN, False),
        ("", "", ActiveState.UNKNOWN, False),
    ],
)
def test_it_is_over_only_where_nothing_runs_or_is_about_to(
    active: str, job: str, expected: ActiveState, over: bool
) -> None:
    state = read(ActiveState=active, JobType=job)
    assert (state.active, state.over) == (expected, over)


@pytest.mark.parametrize(
    "freezer, frozen", [("running", False), ("freezing", True), ("frozen", True), ("thawing", False), ("new", False)]
)
def test_a_freezer_holds_from_the_first_moment(freezer: str, frozen: bool) -> None:
    assert read(FreezerState=freezer).frozen is frozen


@pytest.mark.parametrize(
    "active_exit, main_exit, requested",
    [(0, 0, False), (0, 5, False), (5, 5, False), (6, 5, False), (5, 0, False), (4, 5, True)],
)
def test_a_stop_was_requested_where_the_unit_left_active_before_its_process_ended(
    active_exit: int, main_exit: int, requested: bool
) -> None:
    state = read(ActiveExitTimestampMonotonic=active_exit, ExecMainExitTimestampMonotonic=main_exit)
    assert state.stop_requested is requested


@pytest.mark.parametrize("unit", ["ssh.service", "solo5-network@web.service", "solo5-task-web.socket"])
def test_a_unit_that_is_no_tasks_is_none(unit: str) -> None:
    assert unit_state(unit, {}) is None


RUN = read(InvocationID=bytes(16), MainPID=7, ControlGroup="/x", LogExtraFields=[b"SOLO5_TENDER=hvt"])
ENDED = {
    "InvocationID": bytes(16), "ActiveState": "failed", "Result": "exit-code", "ExecMainCode": 1, "ExecMainStatus": 7,
    "ExecMainExitTimestamp": 20, "ExecMainExitTimestampMonotonic": 2, "ActiveExitTimestampMonotonic": 1,
    "MemoryPeak": 4096,
}  # fmt: skip


@pytest.mark.parametrize("active", ["failed", "activating"])  # the latter: it waits for RestartSec=
def test_the_end_of_a_known_run_is_read_from_what_its_outcome_needs(active: str) -> None:
    ended = after_run(RUN, ENDED | {"ActiveState": active})
    assert ended is not None
    assert (ended.active, ended.result, ended.main_code, ended.main_status) == (
        ActiveState.FAILED, "exit-code", MainCode.EXITED, 7,
    )  # fmt: skip
    assert (ended.ended, ended.main_exit, ended.active_exit, ended.memory_peak) == (20, 2, 1, 4096)
    assert (ended.main_pid, ended.control_group, ended.tender) == (0, "", "hvt")


def test_a_run_in_progress_keeps_its_process() -> None:
    now = after_run(RUN, {"InvocationID": bytes(16), "ActiveState": "deactivating"})
    assert now is not None
    assert (now.over, now.main_pid, now.control_group) == (False, 7, "/x")


@pytest.mark.parametrize(("run", "other"), [(RUN, b""), (RUN, b"1" * 16), (read(), b"")])
def test_another_run_or_none_is_not_the_known_one(run: UnitState, other: bytes) -> None:
    assert after_run(run, ENDED | {"InvocationID": other}) is None
