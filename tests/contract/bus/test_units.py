"""States of units and their changes, over a real bus."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from tests.contract.bus.fake_systemd import FakeSystemd, Unit, pid1
from tests.contract.bus.given import (
    NO_FILES,
    PROMPT,
    SCOPE,
    UNIT,
    WEB,
    changes,
    following,
    restarted,
    service,
)
from tests.contract.netservice import PrivateBus

from solo5_systemd.bus import unit_watch as watch_module
from solo5_systemd.bus.connection import Connection
from solo5_systemd.bus.manager import Manager
from solo5_systemd.bus.unit_watch import unit_path
from solo5_systemd.dbus_api import message_bus
from solo5_systemd.dbus_api.messages import Variant, decode
from solo5_systemd.errors import HostError
from solo5_systemd.names import TaskName, task_service
from solo5_systemd.unit.properties import Property, TransientUnit
from solo5_systemd.unit.state import ActiveState, UnitState

# --- states --------------------------------------------------------------------------------------------------


async def test_a_unit_is_read_from_its_listing_and_its_properties(systemd: FakeSystemd, manager: Manager) -> None:
    systemd.units[UNIT] = service(
        MainPID=Variant("u", 42),
        ControlGroup=Variant("s", "/x"),
        LogExtraFields=Variant("aay", [b"A=b"]),
    )
    state = await manager.state(WEB)
    assert state is not None
    assert (state.task, state.unit, state.active, state.sub) == (WEB, UNIT, ActiveState.ACTIVE, "sub")
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


async def test_a_scope_is_a_task_too(systemd: FakeSystemd, manager: Manager) -> None:
    systemd.units[SCOPE] = Unit(SCOPE, properties={"ControlGroup": Variant("s", "/x")})
    state = await manager.state(WEB)
    assert state is not None
    assert (state.unit, state.control_group, state.log_fields) == (SCOPE, "/x", {})


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


async def test_a_name_that_is_not_loaded_has_no_state(systemd: FakeSystemd, manager: Manager) -> None:
    assert await manager.state(WEB) is None
    assert await manager.states() == []


async def test_all_tasks_are_found_and_nothing_else(systemd: FakeSystemd, manager: Manager) -> None:
    for name in (UNIT, "solo5-task-b.scope", "solo5-network@web.service", "ssh.service", "solo5-task-.service"):
        systemd.units[name] = Unit(name)
    assert sorted(state.unit for state in await manager.states()) == ["solo5-task-b.scope", UNIT]


async def test_a_listing_of_many_tasks_does_not_choke_the_connection(systemd: FakeSystemd, manager: Manager) -> None:
    systemd.units = {name: Unit(name) for name in (f"solo5-task-t{i}.service" for i in range(200))}
    assert len(await manager.states()) == 200


async def test_a_unit_that_waits_for_its_network_is_starting(systemd: FakeSystemd, manager: Manager) -> None:
    systemd.units[UNIT] = service("inactive")
    systemd.units[UNIT].job = "start"
    state = await manager.state(WEB)
    assert state is not None
    assert state.active is ActiveState.ACTIVATING


async def test_a_unit_that_vanishes_between_its_listing_and_its_properties_has_none(
    systemd: FakeSystemd, manager: Manager
) -> None:
    systemd.units[UNIT] = service()
    systemd.units["solo5-task-b.service"] = Unit("solo5-task-b.service")
    systemd.on_list = lambda: systemd.units.pop(UNIT, None)
    assert [state.task for state in await manager.states()] == ["b"]
    assert await manager.state(WEB) is None


async def test_a_property_that_this_systemd_lacks_is_absent(systemd: FakeSystemd, manager: Manager) -> None:
    systemd.units[UNIT] = service()
    del systemd.units[UNIT].properties["FreezerState"]
    state = await manager.state(WEB)
    assert state is not None
    assert not state.frozen


# --- changes -------------------------------------------------------------------------------------------------


async def test_a_change_is_followed_to_the_units_removal(systemd: FakeSystemd, manager: Manager) -> None:
    systemd.units[UNIT] = service()
    async with asyncio.timeout(PROMPT), aclosing(following(manager)) as states:
        assert (await anext(states)).active is ActiveState.ACTIVE
        systemd.units[UNIT] = service("deactivating")
        systemd.changed(UNIT)
        assert (await anext(states)).active is ActiveState.DEACTIVATING
        systemd.remove(UNIT)
        with pytest.raises(StopAsyncIteration):
            await anext(states)


async def test_a_change_while_nobody_looks_is_not_lost(systemd: FakeSystemd, manager: Manager) -> None:
    systemd.units[UNIT] = service()
    async with asyncio.timeout(PROMPT), aclosing(following(manager)) as states:
        await anext(states)
        systemd.units[UNIT] = service("failed")
        systemd.changed(UNIT)
        await manager.states()  # its answer comes after the signal
        assert (await anext(states)).active is ActiveState.FAILED


async def test_a_unit_is_read_once_for_a_change(systemd: FakeSystemd, manager: Manager) -> None:
    systemd.units[UNIT] = service()
    async with aclosing(following(manager)) as states:
        await anext(states)
        systemd.changed(UNIT)
        await anext(states)
        before = len(systemd.called("ListUnitsByNames"))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await anext(states)
        assert len(systemd.called("ListUnitsByNames")) == before


async def test_a_unit_is_read_once_for_several_signals_of_one_state(systemd: FakeSystemd, manager: Manager) -> None:
    systemd.units[UNIT] = service()

    def signal(active: str, entered: int) -> None:
        values = {"ActiveState": Variant("s", active), "ActiveEnterTimestampMonotonic": Variant("t", entered)}
        systemd.changed(UNIT, **values, SubState=Variant("s", "any"))

    async with asyncio.timeout(PROMPT), aclosing(following(manager)) as states:
        await anext(states)
        for steps in ([("active", 1)], [("deactivating", 1)], [("active", 2)]):  # the last: of another run
            before = len(systemd.called("ListUnitsByNames"))
            for step in steps * 5:
                signal(*step)
            await anext(states)
            await manager.states()  # its reply comes after all signals
            assert len(systemd.called("ListUnitsByNames")) == before + 1


async def test_changes_of_other_units_are_not_parsed(
    systemd: FakeSystemd, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    systemd.units[UNIT] = service()
    async with asyncio.timeout(PROMPT), aclosing(following(manager)) as states:
        await anext(states)
        parse = Mock(wraps=decode)
        monkeypatch.setattr(message_bus, "decode", parse)
        for _ in range(5):
            systemd.changed("ssh.service")
        await manager.states()
        assert not [call for call in parse.call_args_list if b"PropertiesChanged" in call.args[0]]
        systemd.changed(UNIT)
        await anext(states)
        assert len([call for call in parse.call_args_list if b"PropertiesChanged" in call.args[0]]) == 1


async def test_a_lost_signal_delays_and_never_hangs(
    systemd: FakeSystemd, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "POLL_INTERVAL_S", 0.05)
    systemd.units[UNIT] = service()
    async with asyncio.timeout(PROMPT), aclosing(following(manager)) as states:
        await anext(states)
        systemd.units[UNIT] = service("failed")
        assert (await anext(states)).active is ActiveState.FAILED
        del systemd.units[UNIT]
        with pytest.raises(StopAsyncIteration):
            await anext(states)


async def test_a_wait_without_a_change_reads_nothing(systemd: FakeSystemd, manager: Manager) -> None:
    systemd.units[UNIT] = service()
    state = await manager.state(WEB)
    assert state is not None
    async with asyncio.timeout(PROMPT), manager.watched(state) as unit:
        first = unit.state
        before = len(systemd.called("ListUnitsByNames"))
        for _ in range(3):
            await unit.changed(0.05)
            assert unit.state is first
    assert len(systemd.called("ListUnitsByNames")) == before


async def match_rules(connection: Connection) -> int:
    """Return the number of match rules of this connection (org.freedesktop.DBus.Debug.Stats)."""
    (stats,) = await connection.call(
        "org.freedesktop.DBus",
        "/org/freedesktop/DBus",
        "org.freedesktop.DBus.Debug.Stats",
        "GetConnectionStats",
        "s",
        [(await connection.connect()).unique_name],
    )
    return int(stats["MatchRules"].value)


def many(systemd: FakeSystemd, count: int) -> list[TaskName]:
    names = [TaskName(f"t{i}") for i in range(count)]
    systemd.units = {task_service(name): replace(service(), name=task_service(name)) for name in names}
    return names


@asynccontextmanager
async def watching(manager: Manager, names: Sequence[TaskName]) -> AsyncIterator[list[AsyncGenerator[UnitState, None]]]:
    """Yield a generator of changes for each unit, past its first state."""
    async with AsyncExitStack() as stack:
        watches = []
        for name in names:
            state = await manager.state(name)
            assert state is not None
            watches.append(await stack.enter_async_context(aclosing(changes(manager, state))))
            await anext(watches[-1])
        yield watches


async def test_a_hundred_watches_are_one_pair_of_rules_and_leave_none(
    systemd: FakeSystemd, manager: Manager, connection: Connection
) -> None:
    names = many(systemd, 100)
    await manager.stop(UNIT)
    rules = await match_rules(connection)
    for _ in range(2):
        async with watching(manager, names):
            assert await match_rules(connection) == rules + 2
        assert await match_rules(connection) == rules


async def test_a_change_is_read_by_those_who_watch_it_alone(systemd: FakeSystemd, manager: Manager) -> None:
    names = many(systemd, 20)
    async with asyncio.timeout(PROMPT * 5), watching(manager, names) as watches:
        before = len(systemd.called("ListUnitsByNames"))
        unit = task_service(names[7])
        systemd.units[unit] = replace(systemd.units[unit], active="failed")
        for _ in range(5):
            systemd.changed(unit)
        systemd.changed("ssh.service")
        assert (await anext(watches[7])).active is ActiveState.FAILED
        for each in (3, 8):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await anext(watches[each])
        assert len(systemd.called("ListUnitsByNames")) <= before + 2


async def test_nothing_is_listed_where_nobody_watches(
    systemd: FakeSystemd, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "POLL_INTERVAL_S", 0.02)
    await manager.states()
    before = asyncio.all_tasks()
    async with watching(manager, many(systemd, 3)):
        await systemd.until_called("ListUnitsByPatterns", 3)
        assert asyncio.all_tasks() > before
    assert asyncio.all_tasks() == before, "what lists has ended with the last watch"


async def test_an_outage_is_no_end_and_what_ended_during_it_is_told_after_it(
    systemd: FakeSystemd,
    manager: Manager,
    connection: Connection,
    bus: PrivateBus,
    address: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch_module, "RETRY_INTERVAL_S", 0.05)
    names = many(systemd, 3)
    async with asyncio.timeout(PROMPT * 5), AsyncExitStack() as stack:
        seen = [await manager.state(name) for name in names]
        units = [await stack.enter_async_context(manager.watched(state)) for state in seen if state is not None]
        systemd.changed(task_service(names[0]))
        bus.close()
        for unit in units:
            await unit.changed(0.1)
            assert unit.state is not None
            assert unit.state.active is ActiveState.ACTIVE
        failed, gone, last = map(task_service, names)
        systemd.units[failed] = replace(systemd.units[failed], active="failed")
        del systemd.units[gone]
        async with restarted(bus, connection), _later(address, systemd.units) as systemd:
            await asyncio.gather(*(unit.changed() for unit in units))
            assert [unit.state and unit.state.active for unit in units] == [
                ActiveState.FAILED,
                None,
                ActiveState.ACTIVE,
            ]
            systemd.units[last] = replace(systemd.units[last], active="deactivating")
            systemd.changed(last)  # signals are heard again
            await units[2].changed()
            assert units[2].state is not None
            assert units[2].state.active is ActiveState.DEACTIVATING


@asynccontextmanager
async def _later(address: str, units: dict[str, Unit]) -> AsyncIterator[FakeSystemd]:
    """Restart PID 1's connection some time after the bus."""
    await asyncio.sleep(0.2)
    async with pid1(address, units) as systemd:
        yield systemd


@pytest.mark.parametrize("error", ["org.freedesktop.DBus.Error.NoReply", "org.freedesktop.DBus.Error.ServiceUnknown"])
async def test_a_property_that_nobody_answered_for_is_no_end(
    systemd: FakeSystemd, manager: Manager, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    monkeypatch.setattr(watch_module, "POLL_INTERVAL_S", 0.05)
    systemd.units[UNIT] = service()
    async with asyncio.timeout(10 * PROMPT), aclosing(following(manager)) as states:
        await anext(states)
        systemd.errors["Get"] = error
        systemd.changed(UNIT)
        assert (await anext(states)).active is ActiveState.ACTIVE
        with pytest.raises(HostError, match="systemd returned the D-Bus error"):
            await manager.states()
        del systemd.errors["Get"]
        systemd.units[UNIT] = service("failed")
        while (await anext(states)).active is not ActiveState.FAILED:
            pass


@pytest.mark.parametrize(
    "unit, path",
    [
        ("a.service", "/org/freedesktop/systemd1/unit/a_2eservice"),
        ("0a@-.scope", "/org/freedesktop/systemd1/unit/_30a_40_2d_2escope"),
    ],
)
def test_a_units_path_is_escaped_as_systemd_does(unit: str, path: str) -> None:
    assert unit_path(unit) == path
