"""The connection to a bus, on a socket whose other end the test has."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support.fakes.background import Background, yields

from solo5_systemd.base.errors import HostError
from solo5_systemd.dbus import message_bus
from solo5_systemd.dbus.message_bus import BUS, MessageBus, connect
from solo5_systemd.dbus.messages import Message, MessageType, decode, encode

FDS = Path("/proc/self/fd")


class FakeBus:
    """The bus's end of a connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    async def read(self) -> Message:
        """Return the next message."""
        header = await self._take(16)
        fields, body = (int.from_bytes(header[at : at + 4], "little") for at in (12, 4))
        return decode(header + await self._take(fields + -fields % 8 + body))

    async def _take(self, size: int) -> bytes:
        loop, data = asyncio.get_running_loop(), b""
        while len(data) < size:
            data += await loop.sock_recv(self.sock, size - len(data))
        return data

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        socket.send_fds(self.sock, [sent(message)], list(fds))

    def reply(self, call: Message, *body: object, signature: str = "") -> None:
        self.send(Message.new_method_return(call, signature, list(body)))


def sent(message: Message) -> bytes:
    """Return a message as bytes with the header field that the bus adds: its sender."""
    sender = message.sender or ":1.7"
    message.serial = message.serial or 1
    data = encode(message)
    end = 16 + int.from_bytes(data[12:16], "little")
    body = data[end + -end % 8 :]
    header = data[:end] + bytes(-end % 8)
    header += b"\7\1s\0" + len(sender).to_bytes(4, "little") + sender.encode() + b"\0"
    header = header[:12] + (len(header) - 16).to_bytes(4, "little") + header[16:]
    return header + bytes(-len(header) % 8) + body


def with_field(data: bytes, code: int, kind: str, value: bytes, align: int = 4) -> bytes:
    """Return a message with one more header field, its first."""
    field = bytes([code, len(kind)]) + kind.encode() + b"\0"
    field += bytes(-(16 + len(field)) % align) + value
    field += bytes(-len(field) % 8)
    end = 16 + int.from_bytes(data[12:16], "little")
    size = len(field) + end - 16
    return data[:12] + size.to_bytes(4, "little") + field + data[16:]


STRANGE = [(100, "y", b"\1", 1), (100, "ay", b"\3\0\0\0\xff\xfe\xfd", 4), (100, "i", b"\40\0\0\0", 4)]
STRANGE += [(100, "s", b"\4\0\0\0\xff\xff\xff\xff\0", 4), (0, "u", bytes(4), 4), (6, "u", b"\377\377\0\0", 4)]
STRANGE += [(6, "s", b"\377\377\377\177", 4), (100, "v", b"\1u\0" + bytes(5), 1), (100, "(ss)", bytes(10), 8)]
"""Header fields that no client library writes: code, type, value, alignment."""


def signal(body: Sequence[object] = (), signature: str = "", sender: str = "", to: str | None = None) -> Message:
    message = Message.new_signal("/a", "a.b", "C", signature, list(body))
    message.sender, message.destination, message.unix_fds = sender, to, []
    return message


def method_call(interface: str, member: str) -> Message:
    return Message(path="/a", interface=interface, member=member, sender=":1.7")


def carry(message: Message, fd: int) -> None:
    """Make a descriptor the body of a message."""
    message.unix_fds, message.signature, message.body = [fd], "h", [0]


def open_descriptors(*files: Path) -> list[Path]:
    """Return this process's descriptors of these files."""
    return [link for link in FDS.iterdir() if link.resolve() in files]


@pytest.fixture
async def pair() -> AsyncIterator[tuple[MessageBus, FakeBus]]:
    """Yield a connection that is registered, and its other end."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    connection, fake = MessageBus(ours), FakeBus(theirs)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(connection.hello())
        call = await fake.read()
        assert call.member == "Hello"
        fake.reply(call, ":1.4", signature="s")
    assert connection.unique_name == ":1.4"
    yield connection, fake
    connection.disconnect()
    theirs.close()


@pytest.fixture
def connection(pair: tuple[MessageBus, FakeBus]) -> MessageBus:
    return pair[0]


@pytest.fixture
def bus(pair: tuple[MessageBus, FakeBus]) -> FakeBus:
    return pair[1]


def heard(connection: MessageBus) -> list[Message]:
    """Return a list that each call and signal is added to; calls are left without a reply."""
    messages: list[Message] = []

    def add(message: Message) -> bool:
        messages.append(message)
        return message.message_type is MessageType.METHOD_CALL

    connection.handler = add
    return messages


async def test_replies_find_their_calls_in_any_order(connection: MessageBus, bus: FakeBus) -> None:
    async with asyncio.TaskGroup() as tasks:
        replies = [tasks.create_task(connection.call(method_call("a.b", member))) for member in ("A", "B")]
        first, second = await bus.read(), await bus.read()
        bus.send(Message.new_error(second, "a.b.Error", "no"))
        bus.reply(first, "yes", signature="s")
    assert [reply.result().message_type for reply in replies] == [MessageType.METHOD_RETURN, MessageType.ERROR]
    assert [reply.result().body for reply in replies] == [["yes"], ["no"]]


@pytest.mark.parametrize("size", [1, 7, 16, 100, 1 << 20])
async def test_messages_are_read_in_any_pieces(connection: MessageBus, bus: FakeBus, size: int) -> None:
    messages = heard(connection)
    data = b"".join(sent(signal([number, "x" * number], "us")) for number in range(20))
    for at in range(0, len(data), size):
        bus.sock.send(data[at : at + size])
        await yields(2)
    await yields()
    assert [message.body[0] for message in messages] == list(range(20))


async def test_a_signal_to_this_connection_alone_is_dropped_unread(connection: MessageBus, bus: FakeBus) -> None:
    messages = heard(connection)
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(bus.sock, sent(signal(["x" * (8 << 20)], "s", to=":1.4")))
    bus.send(signal(["all"], "s"))
    bus.send(signal(["bus"], "s", sender=BUS, to=":1.4"))
    await yields(2000)
    assert [message.body for message in messages] == [["all"], ["bus"]]
    assert len(connection._received) == 0


async def test_memory_for_a_dropped_signal_is_bounded(connection: MessageBus, bus: FakeBus) -> None:
    data = sent(signal(["x" * (8 << 20)], "s", to=":1.4"))
    async with Background(asyncio.get_running_loop().sock_sendall(bus.sock, data)) as sending:
        most = 0
        while not sending.done():
            await yields(1)
            most = max(most, len(connection._received))
    assert most < 1 << 20


async def test_descriptors_belong_to_their_message_and_of_signals_are_closed(
    connection: MessageBus, bus: FakeBus, tmp_path: Path
) -> None:
    messages = heard(connection)
    files = [tmp_path / name for name in ("dropped", "signal", "call")]
    for file, message in zip(files, (signal(to=":1.4"), signal(), method_call("a.b", "C")), strict=True):
        with file.open("w") as opened:
            carry(message, opened.fileno())
            bus.send(message, [opened.fileno()])
    await yields()
    call = messages[-1]
    assert (call.member, len(call.unix_fds)) == ("C", 1)
    assert FDS.joinpath(str(call.unix_fds[0])).resolve() == files[2]
    assert not os.get_inheritable(call.unix_fds[0])
    os.close(call.unix_fds[0])
    assert open_descriptors(*files) == []


@pytest.mark.parametrize("field", STRANGE, ids=lambda field: f"{field[0]}-{field[1]}")
async def test_a_strange_header_field_of_a_signal_costs_no_other_message_and_gives_it_no_descriptor(
    connection: MessageBus, bus: FakeBus, tmp_path: Path, field: tuple[int, str, bytes, int]
) -> None:
    messages = heard(connection)
    for name in ("evil", "good"):
        with (tmp_path / name).open("w") as opened:
            message = signal(to=":1.4") if name == "evil" else method_call("a.b", "C")
            carry(message, opened.fileno())
            data = sent(message)
            data = with_field(data, *field) if name == "evil" else data
            socket.send_fds(bus.sock, [data], [opened.fileno()])
        bus.send(signal([name], "s"))
    await yields()
    assert connection.connected
    assert [message.body for message in messages] == [["evil"], [0], ["good"]]
    [descriptor] = messages[1].unix_fds
    assert FDS.joinpath(str(descriptor)).resolve() == tmp_path / "good"
    os.close(descriptor)
    assert open_descriptors(tmp_path / "evil") == []


async def test_a_strange_header_field_of_another_message_ends_the_connection(
    connection: MessageBus, bus: FakeBus, tmp_path: Path
) -> None:
    with (tmp_path / "file").open("w") as opened:
        message = method_call("a.b", "C")
        carry(message, opened.fileno())
        socket.send_fds(bus.sock, [with_field(sent(message), *STRANGE[0])], [opened.fileno()])
    await yields()
    assert "malformed header" in str(connection.lost.exception())
    assert open_descriptors(tmp_path / "file") == []


async def test_lost_descriptors_end_the_connection(
    connection: MessageBus, bus: FakeBus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with RLIMIT_NOFILE: the kernel drops what there is no room for."""
    monkeypatch.setattr(message_bus, "_ANCILLARY_SIZE", socket.CMSG_LEN(4))
    with (tmp_path / "file").open("w") as opened:
        message = signal()
        message.unix_fds, message.signature, message.body = [opened.fileno()] * 4, "h", [0]
        bus.send(message, [opened.fileno()] * 4)
    await yields()
    assert "were lost" in str(connection.lost.exception())
    assert open_descriptors(tmp_path / "file") == []


async def test_a_full_socket_is_waited_for(connection: MessageBus, bus: FakeBus, tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as opened:
        for _ in range(4):
            message = signal(["x" * (1 << 20)], "s")
            message.unix_fds = [opened.fileno()]
            connection.send(message)
    received = [await bus.read() for _ in range(4)]
    assert [len(message.body[0]) for message in received] == [1 << 20] * 4
    await yields()
    assert open_descriptors(tmp_path / "file") == []


async def test_calls_of_one_turn_are_sent_together(
    connection: MessageBus, bus: FakeBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    class Socket(socket.socket):
        def send(self, data: Any, flags: int = 0) -> int:
            sizes.append(len(data))
            return super().send(data, flags)

    with Socket(fileno=os.dup(connection._sock.fileno())) as sending:
        monkeypatch.setattr(connection, "_sock", sending)
        async with asyncio.TaskGroup() as tasks:
            for number in range(20):
                tasks.create_task(connection.call(method_call("a.b", f"C{number}")))
            calls = [await bus.read() for _ in range(20)]
            for call in calls:
                bus.reply(call)
        monkeypatch.undo()
    assert [call.member for call in calls] == [f"C{number}" for number in range(20)]
    assert len(sizes) == 1


async def test_what_was_sent_before_a_disconnect_arrives(connection: MessageBus, bus: FakeBus) -> None:
    connection.send(signal(["last"], "s"))
    connection.disconnect()
    assert (await bus.read()).body == ["last"]


async def test_a_call_is_answered_by_the_handler_or_by_an_error(connection: MessageBus, bus: FakeBus) -> None:
    def answer(message: Message) -> Message | bool:
        return Message.new_method_return(message, "s", ["here"]) if message.member == "Known" else False

    connection.handler = answer
    for interface, member in (("a.b", "Known"), ("a.b", "Unknown"), ("org.freedesktop.DBus.Peer", "Ping")):
        bus.send(method_call(interface, member))
    known, unknown, ping = await bus.read(), await bus.read(), await bus.read()
    assert known.body == ["here"]
    assert unknown.error_name == "org.freedesktop.DBus.Error.UnknownMethod"
    assert ping.message_type is MessageType.METHOD_RETURN


async def test_a_handler_that_fails_is_an_error_for_its_caller_and_no_end(
    connection: MessageBus, bus: FakeBus, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    failing: list[str] = []

    def fail(message: Message) -> None:
        failing.append(message.member)
        raise ValueError("a bug")

    connection.handler = fail
    with (tmp_path / "file").open("w") as opened:
        message = method_call("a.b", "C")
        carry(message, opened.fileno())
        bus.send(message, [opened.fileno()])
    assert (await bus.read()).error_name == "org.freedesktop.DBus.Error.Failed"
    assert open_descriptors(tmp_path / "file") == []
    bus.send(signal())
    await yields()
    assert "internal error in the handler of C" in caplog.text
    assert failing == ["C", "C"]


async def test_a_call_that_wants_no_reply_gets_none(connection: MessageBus, bus: FakeBus) -> None:
    silent = method_call("org.freedesktop.DBus.Peer", "Ping")
    silent.flags = type(silent.flags)(1)
    bus.send(silent)
    connection.send(signal(["next"], "s"))
    assert (await bus.read()).body == ["next"]


@pytest.mark.parametrize("ended_by", ["us", "the bus"])
async def test_calls_in_flight_end_with_the_connection(connection: MessageBus, bus: FakeBus, ended_by: str) -> None:
    async with Background(connection.call(method_call("a.b", "C"))) as calling:
        await bus.read()
        connection.disconnect() if ended_by == "us" else bus.sock.close()
        with pytest.raises(EOFError, match="closed"):
            await calling
    assert not connection.connected
    assert (connection.lost.exception() is None) == (ended_by == "us")
    with pytest.raises(EOFError):
        connection.send(signal())


async def test_a_message_that_cannot_be_parsed_ends_the_connection(connection: MessageBus, bus: FakeBus) -> None:
    data = bytearray(sent(signal(["abc"], "s")))
    data[-8:] = b"\xff\xff\xff\x00abc\x00"
    bus.sock.send(data)
    await yields()
    assert "cannot be parsed" in str(connection.lost.exception())


@pytest.mark.parametrize(
    "reply, words",
    [
        (b"REJECTED EXTERNAL\r\n", "refuses the authentication: REJECTED"),
        (b"OK 1\r\nERROR\r\n", "ERROR"),
        (b"", "closed"),
    ],
)
async def test_a_refused_authentication_is_one_error(tmp_path: Path, reply: bytes, words: str) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"NEGOTIATE_UNIX_FD\r\n")
        writer.write(reply)
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_unix_server(refuse, tmp_path / "bus"):
        with pytest.raises(HostError, match=words):
            await connect(f"unix:path={tmp_path}/bus")


@pytest.mark.parametrize("address", ["tcp:host=localhost,port=1", "unix:", "autolaunch:"])
async def test_only_addresses_of_unix_sockets_are_used(address: str) -> None:
    with pytest.raises(HostError, match="is not of a Unix socket"):
        await connect(address)


async def test_the_first_address_that_can_be_used_is_used_with_its_escapes_resolved(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="No such file"):
        await connect(f"tcp:host=a;unix:path={tmp_path}/a%20b,guid=1")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "a b"))
        with pytest.raises(HostError, match="Connection refused"):
            await connect(f"tcp:host=a;unix:path={tmp_path}/a%20b,guid=1")
