"""An activation that takes longer than the bus waits, or that the bus refuses."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.contract.bus.fake_systemd import FakeSystemd
from tests.contract.netservice import PrivateBus, until

from solo5_systemd.base.errors import HostError
from solo5_systemd.bus import services
from solo5_systemd.bus.connection import Connection
from solo5_systemd.bus.services import Service
from solo5_systemd.dbus.interfaces import Interface, Member
from solo5_systemd.dbus.message_bus import connect
from solo5_systemd.dbus.messages import Message

NAME = "org.solo5.Slow1"
SLOW = Interface(name=NAME, path="/slow", methods={"Answer": Member("", "s", "answer")})
WAIT_MS = 200
"""`service_start_timeout` of the bus here; the system's is 25 s."""


def answer(message: Message) -> Message | bool:
    return message.member == "Answer" and Message.new_method_return(message, "s", ["answered"])


@pytest.fixture
def attempts(tmp_path: Path, bus: PrivateBus) -> Iterator[Path]:
    """Yield a file with the ID of each process that the bus has activated; none of them requests the name."""
    attempts = tmp_path / "attempts"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\necho $$ >>{attempts}\nexec sleep 60\n")
    program.chmod(0o755)
    bus.activate(NAME, program, WAIT_MS)
    yield attempts
    for pid in attempts.read_text().split():
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


def service(connection: Connection) -> Service:
    return Service(unit="solo5-slow", interface=SLOW, connection=connection)


async def test_a_call_is_repeated_while_its_service_is_still_starting(
    address: str, connection: Connection, attempts: Path
) -> None:
    calling = asyncio.ensure_future(service(connection).call("Answer"))
    await until(lambda: attempts.exists() and len(attempts.read_text().splitlines()) >= 2)
    assert not calling.done()
    bus = await connect(address)
    bus.handler = answer
    await bus.request_name(NAME)
    assert await calling == ["answered"]
    bus.disconnect()


async def test_a_start_that_never_ends_is_given_up(
    connection: Connection, attempts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "ACTIVATION_TIMEOUT_S", 0.0)
    with pytest.raises(HostError, match="solo5-slow did not start or did not answer"):
        await service(connection).call("Answer")
    assert len(attempts.read_text().splitlines()) == 1


async def test_a_service_that_the_bus_may_not_activate_is_started_by_pid_1(
    address: str, bus: PrivateBus, connection: Connection, systemd: FakeSystemd, tmp_path: Path
) -> None:
    """Another user has all the activations that may be pending."""
    bus.activate(NAME, tmp_path / "program", WAIT_MS, pending=0)
    calling = asyncio.ensure_future(service(connection).call("Answer"))
    await systemd.until_called("StartUnit", 2)
    assert systemd.called("StartUnit")[-1] == ["solo5-slow.service", "replace"]
    assert not calling.done()
    own = await connect(address)
    own.handler = answer
    await own.request_name(NAME)
    assert await calling == ["answered"]
    own.disconnect()
