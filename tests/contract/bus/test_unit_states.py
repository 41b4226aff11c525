"""Properties of many units are read from PID 1's files; those that are missing there, from D-Bus."""

import struct
from pathlib import Path

import pytest
from tests.contract.bus.fake_systemd import FakeSystemd, Unit
from tests.contract.bus.given import SCOPE, UNIT, WEB, service

from solo5_systemd.bus.manager import Manager
from solo5_systemd.cgroup.hierarchy import write_fields
from solo5_systemd.dbus.messages import Variant
from solo5_systemd.task.properties import Property, TransientUnit
from solo5_systemd.unit.state import ActiveState

RUN = "ab" * 16
FIELDS = (b"SOLO5_TASK=web", b"NOTE=two\nlines", "TOWN=Köln".encode(), b"LONG=" + b"x" * 100_000, b"BAD=\xff")
CGROUP = f"solo5.slice/solo5-shared.slice/{UNIT}"


@pytest.fixture
def written(systemd: FakeSystemd, tmp_path: Path) -> Path:
    """Return a service in a slice below solo5.slice, with its exported files."""
    systemd.units[UNIT] = service(
        MainPID=Variant("u", 7),
        ControlGroup=Variant("s", "/asked"),
        ExecMainStartTimestamp=Variant("t", 9),
    )
    write(tmp_path, UNIT)
    return tmp_path


def write(machine: Path, unit: str) -> None:
    (machine / f"units/invocation:{unit}").symlink_to(RUN)
    assignments = b"".join(struct.pack("<Q", len(field)) + field for field in FIELDS)
    (machine / f"units/log-extra-fields:{unit}").write_bytes(assignments)
    cgroup = machine / "cgroup/solo5.slice/solo5-shared.slice" / unit
    cgroup.mkdir(parents=True)
    (cgroup / "cgroup.procs").write_text("42\n")
    (cgroup / "cgroup.freeze").write_text("1\n")


async def test_the_start_time_of_a_run_alone_is_requested(
    systemd: FakeSystemd, manager: Manager, written: Path
) -> None:
    (state,) = await manager.states()
    assert (state.task, state.active) == (WEB, ActiveState.ACTIVE)
    assert (state.invocation, state.main_pid, state.control_group, state.frozen) == (RUN, 42, f"/{CGROUP}", True)
    texts = {"SOLO5_TASK": "web", "NOTE": "two\nlines", "TOWN": "Köln", "LONG": "x" * 100_000, "BAD": "\ufffd"}
    assert state.log_fields == texts
    assert (state.started, systemd.read) == (9, ["ExecMainStartTimestamp"])


async def test_a_task_alone_is_always_requested(systemd: FakeSystemd, manager: Manager, written: Path) -> None:
    state = await manager.state(WEB)
    assert state is not None
    assert (state.invocation, state.main_pid, state.control_group) == ("01" * 16, 7, "/asked")


async def test_a_scope_is_known_by_its_files_too_and_has_no_main_process(
    systemd: FakeSystemd, manager: Manager, tmp_path: Path
) -> None:
    systemd.units[SCOPE] = Unit(SCOPE)
    write(tmp_path, SCOPE)
    (state,) = await manager.states(ended=False)
    assert (state.unit, state.invocation, state.main_pid, state.log_fields) == (SCOPE, RUN, 0, {})
    write_fields(f"{tmp_path}/cgroup{state.control_group}", {"A": "b"})
    (marked,) = await manager.states()
    assert (marked.invocation, marked.log_fields) == (RUN, {"A": "b"})
    assert systemd.read == []


@pytest.mark.parametrize(
    "file, content",
    [
        (f"units/invocation:{UNIT}", None),
        (f"units/log-extra-fields:{UNIT}", None),
        (f"units/log-extra-fields:{UNIT}", "\x09\0\0\0\0\0\0\0A=cut"),
        (f"cgroup/{CGROUP}/cgroup.procs", ""),
        (f"cgroup/{CGROUP}/cgroup.procs", "42\n43\n"),
        (f"cgroup/{CGROUP}/cgroup.procs", "0\n"),
        (f"cgroup/{CGROUP}/cgroup.procs", None),
        (f"cgroup/{CGROUP}/cgroup.freeze", None),
    ],
)
async def test_a_unit_of_which_the_files_do_not_tell_all_is_requested(
    systemd: FakeSystemd, manager: Manager, written: Path, file: str, content: str | None
) -> None:
    (written / file).unlink()
    if content is not None:
        (written / file).write_text(content)
    (state,) = await manager.states()
    assert (state.invocation, state.main_pid, state.control_group) == ("01" * 16, 7, "/asked")


async def test_the_end_of_a_unit_is_never_read_from_files(
    systemd: FakeSystemd, manager: Manager, written: Path
) -> None:
    systemd.units[UNIT].active = "failed"
    (state,) = await manager.states()
    assert (state.invocation, state.frozen) == ("01" * 16, False)
    assert await manager.states(ended=False) == ()


async def test_a_unit_that_waits_for_its_start_lives(systemd: FakeSystemd, manager: Manager) -> None:
    systemd.units[UNIT] = service("inactive")
    systemd.units[UNIT].job = "start"
    (state,) = await manager.states(ended=False)
    assert state.active is ActiveState.ACTIVATING


# --- by D-Bus alone -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("active", ["active", "failed"])
async def test_a_unit_is_read_from_its_listing_and_its_properties_and_its_end_once_it_is_over(
    systemd: FakeSystemd, manager: Manager, active: str
) -> None:
    systemd.units[UNIT] = service(
        active,
        MainPID=Variant("u", 42),
        ControlGroup=Variant("s", "/x"),
        LogExtraFields=Variant("aay", [b"A=b"]),
        ExecMainCode=Variant("i", 2),
        ExecMainStatus=Variant("i", 9),
        Result=Variant("s", "signal"),
    )
    state = await manager.state(WEB)
    assert state is not None
    assert (state.task, state.unit, state.active, state.invocation) == (WEB, UNIT, active, "01" * 16)
    assert (state.main_pid, state.control_group, state.log_fields) == (42, "/x", {"A": "b"})
    ended = (state.main_code, state.main_status, state.result)
    assert ended == ((2, 9, "signal") if active == "failed" else (0, 0, "success"))


async def test_the_task_of_a_scope_is_read_from_its_cgroup(
    systemd: FakeSystemd, manager: Manager, tmp_path: Path
) -> None:
    (tmp_path / "cgroup/x").mkdir()
    systemd.units[SCOPE] = Unit(SCOPE, properties={"ControlGroup": Variant("s", "/x")})
    unit = TransientUnit(name=SCOPE, properties=(Property("PIDs", "au", [1]),), marks={"NOMAD_ALLOC_ID": "3fa8"})
    await manager.start(unit)
    assert systemd.called("StartTransientUnit")[0][2] == [["PIDs", Variant("au", [1])]]
    state = await manager.state(WEB)
    assert state is not None
    assert state.log_fields == {"NOMAD_ALLOC_ID": "3fa8"}


async def test_a_scope_that_is_over_before_its_start_was_answered_is_not_marked(
    systemd: FakeSystemd, manager: Manager, tmp_path: Path
) -> None:
    systemd.units[SCOPE] = Unit(SCOPE, properties={"ControlGroup": Variant("s", "")})
    await manager.start(TransientUnit(name=SCOPE, properties=(), marks={"A": "b"}))
    systemd.units[SCOPE].properties["ControlGroup"] = Variant("s", "/")
    state = await manager.state(WEB)
    assert state is not None
    assert state.log_fields == {}


async def test_all_tasks_are_found_and_nothing_else(systemd: FakeSystemd, manager: Manager) -> None:
    for name in (UNIT, "solo5-task-b.scope", "solo5-network@web.service", "ssh.service", "solo5-task-.service"):
        systemd.units[name] = Unit(name)
    assert sorted(state.unit for state in await manager.states()) == ["solo5-task-b.scope", UNIT]
