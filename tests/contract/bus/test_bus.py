"""Errors by name, and a bus that dies."""

import asyncio
import time

import pytest
from dbus_next import Message
from tests.contract.bus.fake_systemd import FakeSystemd, Report
from tests.contract.bus.given import (
    PROMPT,
    UNIT,
    WEB,
    Call,
    following,
    service,
    start,
    stop,
)
from tests.contract.netservice import PrivateBus

from solo5_systemd.bus import connection as connection_module
from solo5_systemd.bus.connection import Connection, RemoteError, system_bus
from solo5_systemd.bus.manager import Manager
from solo5_systemd.errors import HostError, InvalidRequestError, NoSuchTaskError, Solo5Error, TakenError

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
