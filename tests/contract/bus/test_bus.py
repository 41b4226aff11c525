"""PID 1 over a real bus: jobs, errors by name, changes, and a bus that dies."""

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing

import pytest
from dbus_next import Message, MessageType, Variant
from dbus_next.aio import MessageBus
from tests.contract.bus.fake_systemd import FakeSystemd, Report, Unit
from tests.contract.netservice import PrivateBus

from solo5_systemd.bus import connection as connection_module
from solo5_systemd.bus import jobs as jobs_module
from solo5_systemd.bus import watch as watch_module
from solo5_systemd.bus.connection import Connection, RemoteError, system_bus
from solo5_systemd.bus.jobs import MANAGER, MANAGER_PATH
from solo5_systemd.bus.manager import Manager
from solo5_systemd.bus.watch import unit_path
from solo5_systemd.errors import HostError, InvalidRequestError, NoSuchTaskError, Solo5Error, TakenError
from solo5_systemd.names import TaskName
from solo5_systemd.unit.properties import Property, TransientUnit
from solo5_systemd.unit.start import JobFailedError, UnitFiles
from solo5_systemd.unit.state import ActiveState, UnitState

WEB = TaskName("web")
UNIT = "solo5-task-web.service"
SCOPE = "solo5-task-web.scope"
TRANSIENT = TransientUnit(name=UNIT, properties=(Property("MemoryMax", "t", 1 << 20),))
NO_FILES = UnitFiles()
Call = Callable[[Manager], Coroutine[object, object, object]]
PROMPT = 2.0
"""Seconds within which a broken bus must be told; all our own timeouts are longer."""


def service(active: str = "active", *, invocation: int = 1, **properties: Variant) -> Unit:
    values = {"InvocationID": Variant("ay", bytes([invocation] * 16)), "FreezerState": Variant("s", "running")}
    return Unit(UNIT, active=active, properties=values | properties)


async def start(manager: Manager) -> None:
    await manager.start(TRANSIENT, NO_FILES)


async def stop(manager: Manager) -> None:
    await manager.stop(UNIT)


# --- jobs ----------------------------------------------------------------------------------------------------


async def test_a_start_is_one_call_with_every_property_typed_and_every_file(
    systemd: FakeSystemd, manager: Manager
) -> None:
    properties = (
        Property("ExecStart", "a(sasb)", [("/bin/x", ["/bin/x", "a"], False)]),
        Property("SystemCallFilter", "(bas)", (True, ["read"])),
        Property("AllowedCPUs", "ay", b"\x03"),
        Property("LogExtraFields", "aay", [b"A=b"]),
        Property("IPAddressDeny", "a(iayu)", [(2, bytes(4), 0)]),
    )
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stderr:
        files = UnitFiles(stdin=stdin.fileno(), stderr=stderr.fileno())
        await manager.start(TransientUnit(name=UNIT, properties=properties), files)
        assert systemd.files == [(os.fstat(f.fileno()).st_dev, os.fstat(f.fileno()).st_ino) for f in (stdin, stderr)]
    ((name, mode, sent, auxiliary),) = systemd.called("StartTransientUnit")
    assert (name, mode, auxiliary) == (UNIT, "fail", [])
    assert [(key, value.signature, value.value) for key, value in sent] == [
        ("ExecStart", "a(sasb)", [["/bin/x", ["/bin/x", "a"], False]]),
        ("SystemCallFilter", "(bas)", [True, ["read"]]),
        ("AllowedCPUs", "ay", b"\x03"),
        ("LogExtraFields", "aay", [b"A=b"]),
        ("IPAddressDeny", "a(iayu)", [[2, bytes(4), 0]]),
        ("StandardInputFileDescriptor", "h", 0),
        ("StandardErrorFileDescriptor", "h", 1),
    ]


async def test_stderr_alone_is_the_first_descriptor(systemd: FakeSystemd, manager: Manager) -> None:
    with tempfile.TemporaryFile() as stderr:
        await manager.start(TRANSIENT, UnitFiles(stderr=stderr.fileno()))
    ((_, _, sent, _),) = systemd.called("StartTransientUnit")
    assert (sent[-1][0], sent[-1][1].value, len(systemd.files)) == ("StandardErrorFileDescriptor", 0, 1)


@pytest.mark.parametrize("report", [Report.BEFORE, Report.AFTER])
@pytest.mark.parametrize("result", ["done", "failed", "dependency", "canceled", "timeout"])
async def test_a_jobs_result_is_known_whether_it_comes_before_or_after_the_reply(
    systemd: FakeSystemd, manager: Manager, report: Report, result: str
) -> None:
    systemd.report, systemd.result = report, result
    await manager.stop(UNIT)
    if result == "done":
        await start(manager)
        return
    with pytest.raises(JobFailedError) as caught:
        await start(manager)
    assert (caught.value.unit, caught.value.result) == (UNIT, result)


@pytest.mark.parametrize("report", [Report.BEFORE, Report.AFTER])
async def test_fifty_jobs_at_once_each_get_their_own_end(
    systemd: FakeSystemd, manager: Manager, report: Report
) -> None:
    systemd.report = report
    units = [TransientUnit(name=f"solo5-task-t{i}.service", properties=()) for i in range(50)]
    await asyncio.gather(*(manager.start(unit, NO_FILES) for unit in units))
    assert sorted(body[0] for body in systemd.called("StartTransientUnit")) == sorted(unit.name for unit in units)
    assert len(systemd.called("Subscribe")) == 1


@pytest.mark.parametrize("report", [Report.BEFORE, Report.AFTER])
async def test_two_stops_that_systemd_merges_into_one_job_both_end(
    systemd: FakeSystemd, manager: Manager, report: Report
) -> None:
    systemd.report, systemd.one_job = report, True
    async with asyncio.timeout(PROMPT):
        await asyncio.gather(manager.stop(UNIT), manager.stop(UNIT))


async def test_a_stop_takes_the_place_of_a_start_that_is_under_way(systemd: FakeSystemd, manager: Manager) -> None:
    await manager.stop(UNIT)
    assert systemd.called("StopUnit") == [[UNIT, "replace"]]


async def test_a_job_whose_end_is_never_told_is_given_up_and_the_next_works(
    systemd: FakeSystemd, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_module, "JOB_TIMEOUT", 0.05)
    systemd.report = Report.NEVER
    with pytest.raises(HostError, match="systemd did not finish StopUnit within 0 seconds"):
        await manager.stop(UNIT)
    monkeypatch.setattr(jobs_module, "JOB_TIMEOUT", 5)
    systemd.report = Report.AFTER
    await manager.stop(UNIT)


async def test_who_gives_up_waiting_for_a_job_disturbs_nobody(systemd: FakeSystemd, manager: Manager) -> None:
    systemd.report, systemd.one_job = Report.NEVER, True
    waiting = [asyncio.ensure_future(manager.stop(UNIT)) for _ in range(2)]
    await systemd.until_called("StopUnit", 2)
    await asyncio.sleep(0.05)
    waiting[0].cancel()
    systemd.finish(f"{MANAGER_PATH}/job/1")
    async with asyncio.timeout(PROMPT):
        await waiting[1]


async def test_a_first_caller_who_is_cancelled_while_subscribing_blocks_nobody(
    systemd: FakeSystemd, manager: Manager
) -> None:
    systemd.silent = {"Subscribe"}
    first = asyncio.ensure_future(manager.stop(UNIT))
    await systemd.until_called("Subscribe")
    first.cancel()
    systemd.silent = set()
    systemd.errors = {"Subscribe": "org.freedesktop.systemd1.AlreadySubscribed"}
    systemd._subscribers.add("the first")
    async with asyncio.timeout(PROMPT):
        await manager.stop(UNIT)


async def test_a_signal_of_another_shape_is_nobodys_job(
    systemd: FakeSystemd, manager: Manager, connection: Connection, address: str
) -> None:
    await manager.stop(UNIT)
    systemd.report = Report.NEVER
    waiting = asyncio.ensure_future(manager.stop(UNIT))
    await systemd.until_called("StopUnit", 2)
    stranger = await MessageBus(bus_address=address).connect()
    for body, signature in ([], ""), (["x"], "s"), ([1, "/org/freedesktop/systemd1/job/2", "u"], "uos"):
        await stranger.send(
            Message(
                destination=connection.bus.unique_name,
                message_type=MessageType.SIGNAL,
                path=MANAGER_PATH,
                interface=MANAGER,
                member="JobRemoved",
                signature=signature,
                body=body,
            )
        )
    await stranger.call(Message(destination="org.freedesktop.DBus", path="/", member="GetId"))
    stranger.disconnect()
    await stranger.wait_for_disconnect()
    assert not waiting.done()
    systemd.finish(f"{MANAGER_PATH}/job/2")
    await waiting


# --- errors --------------------------------------------------------------------------------------------------

SYSTEMD_ERROR = "org.freedesktop.systemd1."
DBUS_ERROR = "org.freedesktop.DBus.Error."
CALLS: dict[str, Call] = {
    "StartTransientUnit": start,
    "StopUnit": stop,
    "KillUnit": lambda manager: manager.kill(UNIT, 15, everyone=False),
    "ResetFailedUnit": lambda manager: manager.forget([UNIT]),
    "FreezeUnit": lambda manager: manager.freeze(UNIT),
    "ThawUnit": lambda manager: manager.thaw(UNIT),
    "ListUnitsByNames": lambda manager: manager.state(WEB),
    "ListUnitsByPatterns": lambda manager: manager.states(),
    "Subscribe": stop,
}


@pytest.mark.parametrize(
    "member, name, error",
    [
        ("StartTransientUnit", SYSTEMD_ERROR + "UnitExists", TakenError),
        ("StartTransientUnit", DBUS_ERROR + "InvalidArgs", InvalidRequestError),
        ("StartTransientUnit", DBUS_ERROR + "PropertyReadOnly", InvalidRequestError),
        ("StartTransientUnit", SYSTEMD_ERROR + "BadUnitSetting", InvalidRequestError),
        ("FreezeUnit", SYSTEMD_ERROR + "NoSuchUnit", NoSuchTaskError),
        ("ThawUnit", SYSTEMD_ERROR + "NoSuchUnit", NoSuchTaskError),
        *((member, SYSTEMD_ERROR + "NewInTheNextVersion", HostError) for member in CALLS),
        *((member, DBUS_ERROR + "AccessDenied", HostError) for member in CALLS),
    ],
)
async def test_what_systemd_refuses_is_said_in_a_class_of_ours(
    systemd: FakeSystemd, manager: Manager, member: str, name: str, error: type[Solo5Error]
) -> None:
    systemd.errors[member] = name
    with pytest.raises(error) as caught:
        await CALLS[member](manager)
    assert type(caught.value) is error
    assert "the reason" in str(caught.value)
    assert ".." not in str(caught.value)


@pytest.mark.parametrize(
    "member, name",
    [
        ("StopUnit", "NoSuchUnit"),
        ("KillUnit", "NoSuchUnit"),
        ("KillUnit", "NoSuchProcess"),
        ("ResetFailedUnit", "NoSuchUnit"),
    ],
)
async def test_what_is_gone_already_needs_no_ending(
    systemd: FakeSystemd, manager: Manager, member: str, name: str
) -> None:
    systemd.errors[member] = SYSTEMD_ERROR + name
    await CALLS[member](manager)


@pytest.mark.parametrize("member", set(CALLS) - {"Subscribe"})
async def test_a_bus_without_systemd_is_said_to_be_one(manager: Manager, member: str) -> None:
    with pytest.raises(HostError, match="org.freedesktop.systemd1"):
        await CALLS[member](manager)


async def test_a_call_that_is_never_answered_is_given_up(
    systemd: FakeSystemd, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "CALL_TIMEOUT", 0.05)
    systemd.silent = {"KillUnit"}
    with pytest.raises(HostError, match="org.freedesktop.systemd1 did not answer KillUnit within 0 seconds"):
        await manager.kill(UNIT, 9, everyone=True)


async def test_an_error_of_ours_comes_back_as_its_class_with_its_hint(
    systemd: FakeSystemd, connection: Connection
) -> None:
    def refuse(message: Message) -> Message | bool:
        return message.member == "Ours" and Message.new_error(message, "org.solo5.Error.Taken", "it is taken.\nWait.")

    systemd.bus.add_message_handler(refuse)
    with pytest.raises(TakenError) as caught:
        await connection.call("org.freedesktop.systemd1", "/x", "org.x", "Ours")
    assert (caught.value.sentence, caught.value.hint) == ("it is taken.", "Wait.")
    with pytest.raises(RemoteError, match="UnknownMethod|UnknownObject"):
        await connection.call("org.freedesktop.systemd1", "/x", "org.x", "Theirs")


@pytest.mark.parametrize("number, everyone, whom", [(15, False, "main"), (9, True, "all")])
async def test_a_signal_is_sent_to_whom_it_is_meant_for(
    systemd: FakeSystemd, manager: Manager, number: int, everyone: bool, whom: str
) -> None:
    await manager.kill(UNIT, number, everyone=everyone)
    assert systemd.called("KillUnit") == [[UNIT, whom, number]]


# --- states --------------------------------------------------------------------------------------------------


async def test_a_unit_is_read_from_its_listing_and_its_properties(systemd: FakeSystemd, manager: Manager) -> None:
    systemd.units[UNIT] = service(
        MainPID=Variant("u", 42),
        ExecMainCode=Variant("i", 2),
        ExecMainStatus=Variant("i", 9),
        ControlGroup=Variant("s", "/x"),
        LogExtraFields=Variant("aay", [b"A=b"]),
    )
    state = await manager.state(WEB)
    assert state is not None
    assert (state.task, state.unit, state.active, state.sub) == (WEB, UNIT, ActiveState.ACTIVE, "sub")
    assert (state.description, state.invocation) == ("text", "01" * 16)
    assert (state.main_pid, state.main_code, state.main_status) == (42, 2, 9)
    assert (state.control_group, state.log_fields) == ("/x", {"A": "b"})


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


async def following(manager: Manager) -> AsyncGenerator[UnitState, None]:
    state = await manager.state(WEB)
    assert state is not None
    async with aclosing(manager.changes(state)) as states:
        async for now in states:
            yield now


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


# --- a bus that dies -----------------------------------------------------------------------------------------


async def first_change(manager: Manager) -> None:
    async for _ in following(manager):
        pass


@pytest.mark.parametrize(
    "work, silent, report",
    [
        (stop, {"StopUnit"}, Report.AFTER),
        (stop, set(), Report.NEVER),
        (stop, {"Subscribe"}, Report.AFTER),
        (first_change, set(), Report.AFTER),
    ],
    ids=["during a call", "during a job", "while subscribing", "during a watch"],
)
async def test_a_bus_that_dies_is_told_at_once_and_in_one_sentence(
    systemd: FakeSystemd,
    manager: Manager,
    bus: PrivateBus,
    caplog: pytest.LogCaptureFixture,
    work: Call,
    silent: set[str],
    report: Report,
) -> None:
    systemd.units[UNIT] = service()
    systemd.silent, systemd.report = silent, report
    working = asyncio.ensure_future(work(manager))
    await asyncio.sleep(0.2)
    assert not working.done()
    bus.close()
    began = time.monotonic()
    with pytest.raises(HostError, match="system bus"):
        await working
    with pytest.raises(HostError, match="the connection to the system bus broke"):
        await manager.states()
    assert time.monotonic() - began < PROMPT
    assert caplog.messages == []


async def test_without_a_bus_there_is_a_sentence_and_what_to_look_at(bus: PrivateBus) -> None:
    bus.close()
    with pytest.raises(HostError, match="the system bus cannot be reached: .*systemctl status dbus"):
        async with system_bus():
            pass


async def test_a_connection_is_closed_whatever_ended_its_use() -> None:
    with pytest.raises(ZeroDivisionError):
        async with system_bus() as connection:
            raise ZeroDivisionError
    assert connection.lost.done()
    with pytest.raises(HostError):
        await connection.match("type='signal'")
