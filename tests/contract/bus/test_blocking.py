"""The connection without an event loop: a flood of messages, values, and a bus that does not answer."""

import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.contract.bus.child import with_bus
from tests.contract.bus.fake_systemd import FakeSystemd

from solo5_systemd.base.errors import HostError
from solo5_systemd.bus.blocking import BlockingBus
from solo5_systemd.bus.peers import SYSTEMD, Call
from solo5_systemd.dbus.messages import Message, MessageType

CALL = Call("/x", "org.x", "Ask")


def answering(systemd: FakeSystemd, answer: Callable[[Message], None]) -> None:
    """Pass each call of Ask to a function, which sends the reply."""

    def received(message: Message) -> bool:
        if message.member != "Ask":
            return False
        answer(message)
        return True

    systemd.others = received


def ask(bus: BlockingBus) -> Any:
    return bus.call(SYSTEMD, CALL)


async def test_messages_of_others_do_not_extend_the_timeout(
    systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYSTEMD_BUS_TIMEOUT", "1s")

    def flood(call: Message) -> None:
        for _ in range(20_000):
            systemd.bus.send(
                Message(
                    message_type=MessageType.SIGNAL,
                    destination=call.sender,
                    path="/x",
                    interface="org.x",
                    member="Flood",
                )
            )

    answering(systemd, flood)
    with pytest.raises(HostError, match=r"org.freedesktop.systemd1 did not answer Ask: Connection timed out\."):
        await with_bus(ask)


@pytest.mark.parametrize("data", [b"", b"REJECTED\r\n", b"\0" * 4096], ids=["end", "rejected", "zeros"])
def test_a_bus_that_is_none_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, data: bytes) -> None:
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={tmp_path}/none")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{tmp_path}/none")
        listener.listen()
        with closing(BlockingBus()) as bus:
            peer, _ = listener.accept()
            with peer:
                peer.send(data)
                peer.shutdown(socket.SHUT_WR)
                with pytest.raises(HostError, match="the connection to the system bus broke during Ask"):
                    ask(bus)
