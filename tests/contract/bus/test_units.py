"""Units over a real bus: read, and followed as they change."""

import asyncio
from contextlib import aclosing
from dataclasses import replace

import pytest
from dbus_next import Variant
from tests.contract.bus.fake_systemd import FakeSystemd, Unit
from tests.contract.bus.given import (
    PROMPT,
    SCOPE,
    UNIT,
    WEB,
    following,
    service,
)

from solo5_systemd.bus import watch as watch_module
from solo5_systemd.bus.connection import Connection
from solo5_systemd.bus.manager import Manager
from solo5_systemd.bus.watch import unit_path
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
    assert (state.unit, state.control_group) == (SCOPE, "/x")


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
        await asyncio.sleep(0.05)
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


async def test_a_lost_signal_delays_and_never_hangs(
    systemd: FakeSystemd, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "REREAD", 0.05)
    systemd.units[UNIT] = service()
    async with asyncio.timeout(PROMPT), aclosing(following(manager)) as states:
        await anext(states)
        systemd.units[UNIT] = service("failed")
        assert (await anext(states)).active is ActiveState.FAILED


async def match_rules(connection: Connection) -> int:
    """How many the daemon holds for us (its Debug.Stats interface)."""
    (stats,) = await connection.call(
        "org.freedesktop.DBus",
        "/org/freedesktop/DBus",
        "org.freedesktop.DBus.Debug.Stats",
        "GetConnectionStats",
        "s",
        [connection.bus.unique_name],
    )
    return int(stats["MatchRules"].value)


async def test_a_watch_that_ends_leaves_no_rule_and_no_handler(
    systemd: FakeSystemd, manager: Manager, connection: Connection
) -> None:
    systemd.units[UNIT] = service()
    await manager.stop(UNIT)
    rules, handlers = await match_rules(connection), len(connection.bus._user_message_handlers)
    for _ in range(3):
        async with aclosing(following(manager)) as states:
            await anext(states)
            assert await match_rules(connection) == rules + 2
    assert (await match_rules(connection), len(connection.bus._user_message_handlers)) == (rules, handlers)


@pytest.mark.parametrize(
    "unit, path",
    [
        ("a.service", "/org/freedesktop/systemd1/unit/a_2eservice"),
        ("0a@-.scope", "/org/freedesktop/systemd1/unit/_30a_40_2d_2escope"),
    ],
)
def test_a_units_path_is_escaped_as_systemd_does(unit: str, path: str) -> None:
    assert unit_path(unit) == path
