"""Reads without an event loop return what the other client of PID 1 returns, and its errors."""

import os
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.contract.bus.child import with_bus
from tests.contract.bus.fake_systemd import FakeSystemd, Unit
from tests.contract.bus.given import SCOPE, TRANSIENT, UNIT, WEB, service
from tests.contract.bus.test_unit_states import RUN, write

from solo5_systemd.base.errors import HostError
from solo5_systemd.base.names import TaskName
from solo5_systemd.bus import unit_reader as reader_module
from solo5_systemd.bus.blocking import BlockingBus
from solo5_systemd.bus.manager import Manager
from solo5_systemd.bus.peers import SYSTEMD, Call
from solo5_systemd.bus.unit_reader import BlockingReader, UnitReader
from solo5_systemd.cli.context import finished
from solo5_systemd.dbus.messages import Message, Variant

STARTED = Variant("t", 9)

DBUS = "org.freedesktop.DBus.Error."

T = TypeVar("T")
Read = Callable[[Callable[[UnitReader], Coroutine[Any, Any, Any]]], Coroutine[Any, Any, Any]]


@pytest.fixture
def read(files: None, monkeypatch: pytest.MonkeyPatch) -> Read:
    """Return a function that calls a reader in a process of its own."""
    monkeypatch.setattr(reader_module, "RETRY_INTERVAL_S", 0.01)

    async def read(work: Callable[[UnitReader], Coroutine[Any, Any, T]]) -> T:
        return await with_bus(lambda bus: finished(work(BlockingReader(lambda: bus))))

    return read


@pytest.fixture
def units(systemd: FakeSystemd, files: None, tmp_path: Path) -> None:
    """Add a service with files, one without, one that has ended, and a scope."""
    systemd.units[UNIT] = service(ExecMainStartTimestamp=STARTED)
    write(tmp_path, UNIT)
    systemd.units[SCOPE] = Unit(SCOPE, properties={"ControlGroup": Variant("s", f"/solo5.slice/{SCOPE}")})
    for name, active in (("asked", "active"), ("over", "failed"), ("starting", "inactive")):
        unit = service(
            active,
            MainPID=Variant("u", 7),
            LogExtraFields=Variant("aay", [b"SOLO5_TASK=x", b"NOTE=two\nlines"]),
            ControlGroup=Variant("s", "/asked"),
            MemoryPeak=Variant("t", (1 << 64) - 1),
            ExecMainCode=Variant("i", 1),
            ExecMainStatus=Variant("i", 3),
            ExecMainStartTimestamp=STARTED,
        )
        unit.name, unit.job = f"solo5-task-{name}.service", "start" if name == "starting" else ""
        systemd.units[unit.name] = unit
    systemd.units["solo5-task-gone.service"] = Unit("solo5-task-gone.service", load="not-found")


@pytest.mark.parametrize("ended", [True, False])
async def test_both_clients_read_the_same(
    systemd: FakeSystemd, manager: Manager, read: Read, units: None, ended: bool
) -> None:
    expected = sorted(await manager.states(ended=ended), key=lambda state: state.unit)
    assert len(expected) == 4 + ended
    assert sorted(await read(lambda reader: reader.states(ended=ended)), key=lambda state: state.unit) == expected
    assert await read(lambda reader: reader.names(ended=ended)) == await manager.names(ended=ended)
    for name in ("web", "asked", "over", "nothing"):
        task = TaskName(name)
        assert await read(partial(UnitReader.state, task=task)) == await manager.state(task)


async def test_nothing_is_read_without_units(systemd: FakeSystemd, read: Read) -> None:
    assert not await read(lambda reader: reader.states())
    assert not await read(lambda reader: reader.names())
    assert await read(lambda reader: reader.state(WEB)) is None
    assert systemd.read == []


async def test_units_that_vanish_after_the_listing_are_left_out(
    systemd: FakeSystemd, manager: Manager, read: Read, units: None
) -> None:
    units_before = dict(systemd.units)
    systemd.on_list = systemd.units.clear
    for states in (lambda: read(lambda reader: reader.states()), manager.states):
        systemd.units |= units_before
        assert list(await states()) == []


async def test_the_state_of_the_system(systemd: FakeSystemd, manager: Manager, read: Read) -> None:
    for state in ("running", "stopping"):
        systemd.about["SystemState"] = state
        assert await read(lambda reader: reader.is_shutting_down()) is (state == "stopping")
        assert await manager.is_shutting_down() is (state == "stopping")


async def test_the_release_is_read_once(systemd: FakeSystemd, manager: Manager) -> None:
    for version in ("252.39-1~deb12u1", "257.8-1"):
        systemd.about["Version"] = version
        assert await manager.release() == 252


# --- start times ----------------------------------------------------------------------------------------------


def attribute(tmp_path: Path) -> str:
    return f"{tmp_path}/cgroup/solo5.slice/solo5-shared.slice/{UNIT}"


@pytest.fixture
def web(systemd: FakeSystemd, tmp_path: Path) -> None:
    systemd.units[UNIT] = service(ExecMainStartTimestamp=STARTED)
    write(tmp_path, UNIT)


async def test_a_start_that_was_recorded_takes_no_property(
    systemd: FakeSystemd, manager: Manager, read: Read, web: None, tmp_path: Path
) -> None:
    os.setxattr(attribute(tmp_path), "user.solo5.started", f"{RUN} 1234".encode())
    for states in (await read(lambda reader: reader.states()), await manager.states()):
        assert [state.started for state in states] == [1234]
    assert systemd.read == []


@pytest.mark.parametrize(
    "value", [f"{'cd' * 16} 1234", f"{RUN} soon", f"{RUN} -5", f"{RUN} {'9' * 18}", f"{RUN} {'9' * 5000}", RUN, ""]
)
async def test_a_start_of_another_run_or_a_damaged_one_is_read_from_pid_1(
    systemd: FakeSystemd, manager: Manager, read: Read, web: None, tmp_path: Path, value: str
) -> None:
    os.setxattr(attribute(tmp_path), "user.solo5.started", value.encode())
    for states in (await read(lambda reader: reader.states()), await manager.states()):
        assert [(state.started, state.invocation) for state in states] == [(9, RUN)]
    assert systemd.read == ["ExecMainStartTimestamp"] * 2


async def test_a_start_is_recorded(systemd: FakeSystemd, manager: Manager, web: None, tmp_path: Path) -> None:
    group = attribute(tmp_path).removeprefix(f"{tmp_path}/cgroup")
    systemd.units[UNIT].properties |= {
        "ControlGroup": Variant("s", group),
        "InvocationID": Variant("ay", bytes.fromhex(RUN)),
    }
    await manager.start(TRANSIENT)
    assert os.getxattr(attribute(tmp_path), "user.solo5.started") == f"{RUN} 9".encode()


# --- errors ---------------------------------------------------------------------------------------------------


async def test_a_read_is_repeated_while_pid_1_is_off_the_bus(systemd: FakeSystemd, read: Read, units: None) -> None:
    systemd.errors["ListUnitsByPatterns"] = "org.freedesktop.DBus.Error.NoReply"
    systemd.passing = {"ListUnitsByPatterns"}
    assert len(await read(lambda reader: reader.names())) == 5
    assert len(systemd.called("ListUnitsByPatterns")) == 2


async def test_a_bus_without_systemd_is_an_error_at_last(
    address: str, read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "CALL_RETRIES", 2)
    with pytest.raises(HostError, match="systemd returned the D-Bus error org.freedesktop.DBus.Error.ServiceUnknown"):
        await read(lambda reader: reader.names())


@pytest.mark.parametrize("member", ["ListUnitsByPatterns", "Get"])
async def test_an_error_of_systemd_is_one_sentence(systemd: FakeSystemd, read: Read, units: None, member: str) -> None:
    systemd.errors[member] = "x.New"
    with pytest.raises(HostError, match=r"systemd returned the D-Bus error x\.New: the reason"):
        await read(lambda reader: reader.states())


def test_a_bus_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={tmp_path}/none")
    with pytest.raises(HostError, match="the system bus cannot be reached: .*No such file or directory.*dbus.socket"):
        BlockingBus()


# --- values ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "signature, value, expected",
    [
        *((code, value, value) for code, value in (("s", "é"), ("q", 1), ("b", True), ("x", -2), ("t", 1 << 63))),
        ("ay", b"\0\xff", [0, 255]),
        ("a(st)", [["a", 1], ["b", 2]], [("a", 1), ("b", 2)]),
        ("aay", [b"x", b""], [[120], []]),
        ("as", [], []),
        ("a{sv}", {"k": Variant("v", Variant("t", 5))}, {"k": 5}),
        ("v", Variant("(so)", ["text", "/"]), ("text", "/")),
        ("v", Variant("a(so)", [["text", "/"]]), [("text", "/")]),
        ("v", Variant("a(s(u))", [["text", [7]]]), [("text", (7,))]),
        ("v", Variant("((su))", [["text", 7]]), (("text", 7),)),
        ("v", Variant("a(so)", []), []),
        ("v", Variant("a{sv}", {}), []),
    ],
)
async def test_every_kind_of_value(systemd: FakeSystemd, signature: str, value: object, expected: object) -> None:
    def reply(message: Message) -> Message | bool:
        return message.member == "Value" and Message.new_method_return(message, signature, [value])

    systemd.others = reply
    found = await with_bus(lambda bus: bus.call(SYSTEMD, Call("/x", "org.x", "Value")))
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize(
    "name, expected",
    [
        ("org.solo5.Error.Taken", ("TakenError", "it is taken. Wait.")),
        ("x.New", ("RemoteError", "x.New: it is taken.\nWait.")),
        (f"{DBUS}NoReply", ("RemoteError", f"{DBUS}NoReply: it is taken.\nWait.")),
    ],
)
async def test_errors_of_peers(systemd: FakeSystemd, name: str, expected: tuple[str, str]) -> None:
    def reply(message: Message) -> Message | bool:
        return message.member == "Ask" and Message.new_error(message, name, "it is taken.\nWait.")

    def ask(bus: BlockingBus) -> tuple[str, str]:
        try:
            return "nothing", str(bus.call(SYSTEMD, Call("/x", "org.x", "Ask")))
        except Exception as error:  # noqa: BLE001 - one that can be sent to this process
            return type(error).__name__, str(error)

    systemd.others = reply
    assert await with_bus(ask) == expected
