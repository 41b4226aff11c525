"""D-Bus errors, and a bus that exits."""

import asyncio
import os
import time
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.version import Version
from tests.contract.bus.fake_systemd import FakeSystemd, Report, pid1
from tests.contract.bus.given import PROMPT, UNIT, WEB, Call, restarted, service, start, stop
from tests.contract.netservice import PrivateBus

from solo5_systemd.base.errors import HostError, InvalidRequestError, NoSuchTaskError, Solo5Error, TakenError
from solo5_systemd.bus import connection as connection_module
from solo5_systemd.bus.connection import Connection, system_bus
from solo5_systemd.bus.manager import Manager
from solo5_systemd.bus.peers import MANAGER, MANAGER_PATH, SYSTEMD
from solo5_systemd.dbus.message_bus import BUS, BUS_PATH
from solo5_systemd.dbus.messages import LIBRARY

# --- errors --------------------------------------------------------------------------------------------------

SYSTEMD_ERROR = "org.freedesktop.systemd1."
DBUS_ERROR = "org.freedesktop.DBus.Error."
CALLS: dict[str, Call] = {
    "StartTransientUnit": start,
    "StopUnit": stop,
    "KillUnit": lambda manager: manager.kill(UNIT, 15, everyone=False),
    "ResetFailedUnit": lambda manager: manager.reset_failed([UNIT]),
    "FreezeUnit": lambda manager: manager.freeze(UNIT),
    "ThawUnit": lambda manager: manager.thaw(UNIT),
    "ListUnitsByNames": lambda manager: manager.state(WEB),
}

EACH_WAY = ("StartTransientUnit", "KillUnit", "ListUnitsByNames")
"""Members of a job, of a call, and of a read."""


@pytest.mark.parametrize(
    "member, name, error",
    [
        ("StartTransientUnit", SYSTEMD_ERROR + "UnitExists", TakenError),
        ("StartTransientUnit", DBUS_ERROR + "InvalidArgs", InvalidRequestError),
        ("StartTransientUnit", DBUS_ERROR + "PropertyReadOnly", InvalidRequestError),
        ("StartTransientUnit", SYSTEMD_ERROR + "BadUnitSetting", InvalidRequestError),
        ("FreezeUnit", SYSTEMD_ERROR + "NoSuchUnit", NoSuchTaskError),
        ("ThawUnit", SYSTEMD_ERROR + "NoSuchUnit", NoSuchTaskError),
        *((member, SYSTEMD_ERROR + "NewInTheNextVersion", HostError) for member in EACH_WAY),
        *((member, DBUS_ERROR + "AccessDenied", HostError) for member in EACH_WAY),
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
    assert len(systemd.called(member)) == 1


@pytest.mark.parametrize("member", EACH_WAY)
async def test_a_bus_without_systemd_is_said_to_be_one(manager: Manager, member: str) -> None:
    with pytest.raises(HostError, match="org.freedesktop.systemd1"):
        await CALLS[member](manager)


async def test_a_call_that_is_never_answered_is_given_up(
    systemd: FakeSystemd, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "CALL_TIMEOUT_S", 0.05)
    systemd.silent = {"KillUnit"}
    with pytest.raises(HostError, match="org.freedesktop.systemd1 did not answer KillUnit within 0 seconds"):
        await manager.kill(UNIT, 9, everyone=True)


@pytest.mark.parametrize("number, everyone, whom", [(15, False, "main"), (9, True, "all")])
async def test_a_signal_is_sent_to_whom_it_is_meant_for(
    systemd: FakeSystemd, manager: Manager, number: int, everyone: bool, whom: str
) -> None:
    await manager.kill(UNIT, number, everyone=everyone)
    assert systemd.called("KillUnit") == [[UNIT, whom, number]]


def test_library_in_use_is_the_one_that_this_run_is_for() -> None:
    hidden = "without_dbus_fast" in os.environ.get("PYTHONPATH", "")
    usable = Version(version("dbus-fast")) >= Version("2.11.1")  # an earlier one counts characters
    assert ("dbus_fast" if usable and not hidden else "dbus_next") == LIBRARY


# --- a bus that dies -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_job", [False, True], ids=["during a call", "during a job"])
async def test_a_bus_that_dies_is_reported_at_once_and_in_one_sentence(
    systemd: FakeSystemd, manager: Manager, bus: PrivateBus, caplog: pytest.LogCaptureFixture, *, in_job: bool
) -> None:
    systemd.units[UNIT] = service()
    systemd.silent, systemd.report = (set(), Report.NEVER) if in_job else ({"StopUnit"}, Report.AFTER)
    working = asyncio.ensure_future(manager.stop(UNIT))
    await systemd.until_called("StopUnit")
    assert not working.done()
    bus.close()
    began = time.monotonic()
    with pytest.raises(HostError, match="system bus"):
        await working
    with pytest.raises(HostError, match="the system bus cannot be reached: .*systemctl start dbus"):
        await manager.states()
    assert time.monotonic() - began < PROMPT
    assert caplog.messages == []


async def test_a_connection_is_closed_whatever_ended_its_use() -> None:
    with pytest.raises(ZeroDivisionError):
        async with system_bus() as connection:
            raise ZeroDivisionError
    with pytest.raises(HostError):
        await connection.connect()


# --- a bus that comes back -----------------------------------------------------------------------------------


async def test_the_next_call_finds_the_bus_again(
    systemd: FakeSystemd, manager: Manager, connection: Connection, bus: PrivateBus, address: str
) -> None:
    systemd.units[UNIT] = service()
    await manager.stop(UNIT)
    bus.close()
    with pytest.raises(HostError):
        await manager.state(WEB)
    async with restarted(bus, connection), pid1(address, systemd.units) as systemd:
        assert await manager.state(WEB) is not None
        async with asyncio.timeout(PROMPT):
            await manager.stop(UNIT)  # its end is a signal, which must have been matched anew


async def test_what_two_have_matched_is_the_others_after_a_reconnect_when_one_ends(
    connection: Connection, bus: PrivateBus
) -> None:
    signal = (BUS, BUS, "NameOwnerChanged")
    first, second = asyncio.Queue[list[str] | None](), asyncio.Queue[list[str] | None]()
    for each in (first, second):
        connection.listen(signal, each.put_nowait)
    async with restarted(bus, connection), asyncio.timeout(PROMPT):
        assert await first.get() is None, "the connection is lost"
        await connection.connect()
        connection.ignore(signal, first.put_nowait)
        await connection.call(BUS, BUS_PATH, BUS, "GetId")  # the reply comes after the rules are as they are to be
        async with system_bus():
            assert [await second.get() is None for _ in range(2)] == [True, False]


async def test_many_calls_at_once_connect_once(
    systemd: FakeSystemd, manager: Manager, connection: Connection, bus: PrivateBus, address: str
) -> None:
    await manager.states()
    async with restarted(bus, connection), pid1(address):
        made = await asyncio.gather(*(connection.connect() for _ in range(100)))
        assert len({*made}) == 1


async def test_a_daemon_that_ends_in_the_middle_of_a_greeting_is_an_error_and_no_endless_loop(tmp_path: Path) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    async with await asyncio.start_unix_server(hang_up, tmp_path / "bus"):
        with pytest.raises(HostError, match="the system bus cannot be reached: it was closed"):
            async with asyncio.timeout(PROMPT), system_bus(f"unix:path={tmp_path}/bus"):
                pass


async def test_a_slow_peer_delays_no_other_call(systemd: FakeSystemd, connection: Connection) -> None:
    systemd.silent = {"Slow"}
    slow = [
        asyncio.ensure_future(connection.call(SYSTEMD, MANAGER_PATH, MANAGER, "Slow"))
        for _ in range(connection_module.MAX_IN_FLIGHT)
    ]
    async with asyncio.timeout(PROMPT):
        await systemd.until_called("Slow", len(slow))
        await connection.call(BUS, BUS_PATH, BUS, "GetId")
    assert not any(each.done() for each in slow)
    for each in slow:
        each.cancel()
    await asyncio.gather(*slow, return_exceptions=True)


@pytest.mark.parametrize("member", CALLS)
@pytest.mark.parametrize("name", ["NoReply", "ServiceUnknown", "Spawn.ChildExited"])
async def test_a_call_is_repeated_while_pid1_reexecutes(
    systemd: FakeSystemd, manager: Manager, member: str, name: str
) -> None:
    systemd.units[UNIT] = service()
    systemd.errors[member] = DBUS_ERROR + name
    systemd.passing.add(member)
    await CALLS[member](manager)
    assert len(systemd.called(member)) == 2
