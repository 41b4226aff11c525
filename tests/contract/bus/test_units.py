"""States of units and their changes, over a real bus."""

from dataclasses import replace
from pathlib import Path

from tests.contract.bus.fake_systemd import FakeSystemd, Unit
from tests.contract.bus.given import (
    NO_FILES,
    SCOPE,
    UNIT,
    WEB,
    service,
)

from solo5_systemd.bus.manager import Manager
from solo5_systemd.dbus.messages import Variant
from solo5_systemd.task.properties import Property, TransientUnit
from solo5_systemd.unit.state import ActiveState

# --- states --------------------------------------------------------------------------------------------------


async def test_a_unit_is_read_from_its_listing_and_its_properties(systemd: FakeSystemd, manager: Manager) -> None:
    systemd.units[UNIT] = service(
        MainPID=Variant("u", 42),
        ControlGroup=Variant("s", "/x"),
        LogExtraFields=Variant("aay", [b"A=b"]),
    )
    state = await manager.state(WEB)
    assert state is not None
    assert (state.task, state.unit, state.active) == (WEB, UNIT, ActiveState.ACTIVE)
    assert (state.description, state.invocation) == ("text", "01" * 16)
    assert state.main_pid == 42
    assert (state.control_group, state.log_fields) == ("/x", {"A": "b"})


async def test_how_it_ended_is_read_of_a_unit_that_is_over(systemd: FakeSystemd, manager: Manager) -> None:
    systemd.units[UNIT] = replace(
        service(ExecMainCode=Variant("i", 2), ExecMainStatus=Variant("i", 9), Result=Variant("s", "signal")),
        active="failed",
    )
    state = await manager.state(WEB)
    assert state is not None
    assert (state.main_code, state.main_status, state.result) == (2, 9, "signal")


async def test_what_a_scope_says_of_its_task_is_in_its_cgroup(
    systemd: FakeSystemd, manager: Manager, tmp_path: Path
) -> None:
    (tmp_path / "cgroup/x").mkdir()
    systemd.units[SCOPE] = Unit(SCOPE, properties={"ControlGroup": Variant("s", "/x")})
    unit = TransientUnit(name=SCOPE, properties=(Property("PIDs", "au", [1]),), marks={"NOMAD_ALLOC_ID": "3fa8"})
    await manager.start(unit, NO_FILES)
    assert systemd.called("StartTransientUnit")[0][2] == [["PIDs", Variant("au", [1])]]
    state = await manager.state(WEB)
    assert state is not None
    assert state.log_fields == {"NOMAD_ALLOC_ID": "3fa8"}


async def test_a_scope_that_is_over_before_its_start_was_answered_is_not_marked(
    systemd: FakeSystemd, manager: Manager, tmp_path: Path
) -> None:
    systemd.units[SCOPE] = Unit(SCOPE, properties={"ControlGroup": Variant("s", "")})
    await manager.start(TransientUnit(name=SCOPE, properties=(), marks={"A": "b"}), NO_FILES)
    systemd.units[SCOPE].properties["ControlGroup"] = Variant("s", "/")
    state = await manager.state(WEB)
    assert state is not None
    assert state.log_fields == {}


async def test_all_tasks_are_found_and_nothing_else(systemd: FakeSystemd, manager: Manager) -> None:
    for name in (UNIT, "solo5-task-b.scope", "solo5-network@web.service", "ssh.service", "solo5-task-.service"):
        systemd.units[name] = Unit(name)
    assert sorted(state.unit for state in await manager.states()) == ["solo5-task-b.scope", UNIT]


async def test_a_listing_of_many_tasks_does_not_choke_the_connection(systemd: FakeSystemd, manager: Manager) -> None:
    systemd.units = {name: Unit(name) for name in (f"solo5-task-t{i}.service" for i in range(40))}
    assert len(await manager.states()) == 40


async def test_a_property_that_this_systemd_lacks_is_absent(systemd: FakeSystemd, manager: Manager) -> None:
    systemd.units[UNIT] = service()
    del systemd.units[UNIT].properties["FreezerState"]
    state = await manager.state(WEB)
    assert state is not None
    assert not state.frozen
