"""The connection without an event loop: hostile messages, limits of the bus, and a bus that does not answer."""

import asyncio
import ctypes
import socket
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.contract.bus.fake_systemd import FakeSystemd

from solo5_systemd.base.errors import HostError
from solo5_systemd.bus.blocking import MAX_IN_FLIGHT, BlockingBus
from solo5_systemd.bus.peers import SYSTEMD, Call
from solo5_systemd.dbus.messages import Message, Variant

CALL = Call("/x", "org.x", "Ask")

Answer = Callable[[Message], None]


def call_all(calls: Sequence[Call] = (CALL,), timeout_s: float = 5) -> list[list[Any] | Exception]:
    with closing(BlockingBus()) as bus:
        return bus.call_all(SYSTEMD, calls, timeout_s)


def answering(systemd: FakeSystemd, answer: Answer) -> None:
    """Pass each call of Ask to a function, which sends the reply."""

    def received(message: Message) -> bool:
        if message.member != "Ask":
            return False
        answer(message)
        return True

    systemd.bus.add_message_handler(received)


async def test_the_calls_in_flight_are_no_more_than_the_bus_allows(systemd: FakeSystemd) -> None:
    held: list[Message] = []

    def answer(message: Message) -> None:  # as PID 1 does after it was busy
        held.append(message)
        if len(held) == MAX_IN_FLIGHT:
            for each in held:
                systemd.bus.send(Message.new_method_return(each, "s", ["done"]))
            held.clear()

    answering(systemd, answer)
    assert await asyncio.to_thread(call_all, [CALL] * 2 * MAX_IN_FLIGHT) == [["done"]] * 2 * MAX_IN_FLIGHT


async def test_messages_of_others_do_not_extend_the_timeout(systemd: FakeSystemd) -> None:
    answering(systemd, lambda _message: None)

    class Flooded:
        """The library, with another message whenever one is read."""

        def __init__(self, library: ctypes.CDLL) -> None:
            self._library = library
            self.messages = 0

        def __getattr__(self, name: str) -> Any:
            return getattr(self._library, name)

        def sd_bus_process(self, _bus: object, _message: object) -> int:
            self.messages += 1
            assert self.messages < 1_000_000, "no end"
            return 1

    def call() -> int:
        with closing(BlockingBus()) as bus:
            bus.call("org.freedesktop.DBus", Call("/", "org.freedesktop.DBus", "GetId"))
            library = Flooded(bus._library)
            bus._library = library  # type: ignore[assignment]
            with pytest.raises(HostError, match="did not answer Ask within 0 seconds"):
                bus.call(SYSTEMD, CALL, timeout_s=0.05)
            return library.messages

    assert await asyncio.to_thread(call) > 1


@pytest.mark.parametrize(
    "signature, value, expected",
    [
        ("(so)", ["text", "/"], ["text", "/"]),
        ("a(so)", [["text", "/"]], [["text", "/"]]),
        ("a(s(u))", [["text", [7]]], [["text", [7]]]),
        ("((su))", [["text", 7]], [["text", 7]]),
        ("a(so)", [], []),
    ],
)
async def test_structures_in_a_variant(
    systemd: FakeSystemd, signature: str, value: list[Any], expected: list[Any]
) -> None:
    answering(systemd, lambda call: systemd.bus.send(Message.new_method_return(call, "v", [Variant(signature, value)])))
    assert await asyncio.to_thread(call_all) == [[expected]]


async def test_a_value_that_has_no_type_here_is_an_error(systemd: FakeSystemd) -> None:
    answering(systemd, lambda call: systemd.bus.send(Message.new_method_return(call, "h", [0], unix_fds=[0])))
    with pytest.raises(HostError, match="during Ask: Invalid argument"):
        await asyncio.to_thread(call_all)


@pytest.mark.parametrize(
    "data, error",
    [
        (None, "the system bus cannot be reached: .*/none: it does not answer"),
        (b"", "the connection to the system bus broke during Ask"),
        (b"REJECTED\r\n", "the connection to the system bus broke during Ask"),
        (b"\0" * 4096, "the connection to the system bus broke during Ask"),
        (b"DATA\r\nOK " + b"a" * 32 + b"\r\nAGREE_UNIX_FD\r\n" + b"l\xff" * 64, "the connection .* broke"),
    ],
    ids=["silence", "end", "rejected", "zeros", "message"],
)
def test_a_bus_that_is_none_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, data: bytes | None, error: str
) -> None:
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={tmp_path}/none")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{tmp_path}/none")
        listener.listen()
        with closing(BlockingBus()) as bus:
            peer, _ = listener.accept()
            with peer:
                if data is not None:
                    peer.send(data)
                    peer.shutdown(socket.SHUT_WR)
                with pytest.raises(HostError, match=error):
                    bus.call(SYSTEMD, CALL, timeout_s=0.1)
