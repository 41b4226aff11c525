"""A connection to a message bus, on asyncio.

The libraries' own connections have faults (docs/decisions/dbus-connection.md). Unicast signals of others than the bus
are dropped by their header, with their descriptors (docs/decisions/bus-signals.md).
"""

import asyncio
import logging
import os
import socket
import struct
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from itertools import count
from typing import Any
from urllib.parse import unquote

from solo5_systemd.base.dependencies import SYSTEM_BUS, advice
from solo5_systemd.base.errors import HostError
from solo5_systemd.dbus.messages import Message, MessageType, decode, encode, expects_reply

BUS = "org.freedesktop.DBus"
BUS_PATH = "/org/freedesktop/DBus"
DEFAULT_ADDRESS = f"unix:path={SYSTEM_BUS}"

CALL_TIMEOUT_S = 25.0
"""Timeout of one call, and of the connection to the bus: that of dbus-daemon for an activation
(`service_start_timeout`)."""

READ_SIZE = 1 << 17
"""Bytes of one recvmsg(2): many messages."""

_ANCILLARY_SIZE = socket.CMSG_SPACE(4 * 253)
"""Bytes for the file descriptors of one sendmsg(2): SCM_MAX_FD of unix(7)."""

_FIXED = 16
"""Bytes of a header before its fields."""

_SIGNAL = 4
_DESTINATION, _SENDER, _UNIX_FDS = 6, 7, 9
_FIELD_TYPES = {1: b"o", 2: b"s", 3: b"s", 4: b"s", 5: b"u", 6: b"s", 7: b"s", 8: b"g", 9: b"u"}
"""The types of header fields by their codes."""
_REQUEST_NAME_DO_NOT_QUEUE, _PRIMARY_OWNER = 4, 1

Handler = Callable[[Message], object]

_log = logging.getLogger(__name__)


class MessageBus:
    """A connection to a message bus, made by `connect`.

    Attributes:
        handler: called for each method call and signal. It returns the reply to a call, or True: it replies later, and
            closes the descriptors of the call itself.
        lost: done when the connection has ended; its exception is the reason, None after `disconnect`.
    """

    def __init__(self, sock: socket.socket, handler: Handler | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._serials = count(1)
        self._replies: dict[int, asyncio.Future[Message]] = {}
        self.handler = handler
        self._received = bytearray()
        self._received_fds: deque[int] = deque()
        self._skip = 0
        self._unsent: deque[tuple[memoryview, Sequence[int]]] = deque()
        self._writing = False
        self.unique_name = ""
        self.lost: asyncio.Future[None] = self._loop.create_future()

    @property
    def connected(self) -> bool:
        """Return whether the connection can be used."""
        return not self.lost.done()

    async def call(self, message: Message) -> Message:
        """Send a method call and return the reply, which may be an error.

        Raises:
            OSError, EOFError: the connection has ended.
        """
        self.send(message)
        self._replies[message.serial] = reply = self._loop.create_future()
        try:
            return await reply
        finally:
            del self._replies[message.serial]

    def send(self, message: Message) -> None:
        """Send a message, and wait for no reply.

        Raises:
            OSError, EOFError: the connection has ended.
        """
        if self.lost.done():
            raise self.lost.exception() or EOFError("it was closed")
        message.serial = next(self._serials)
        data = memoryview(encode(message))
        self._unsent.append((data, _duplicates(message.unix_fds or ())))  # the caller may close its own
        if not self._writing:  # in this turn of the loop other calls may follow, for the same system call
            self._writing = True
            self._loop.call_soon(self._write)

    async def hello(self) -> None:
        """Register at the bus: the first call of every connection. Raises as `call`."""
        self._loop.add_reader(self._sock, self._readable)
        self.unique_name = await self._bus_call("Hello")

    async def request_name(self, name: str) -> None:
        """Own a bus name.

        Raises:
            OSError: another connection has it, or this one has ended.
        """
        if await self._bus_call("RequestName", "su", name, _REQUEST_NAME_DO_NOT_QUEUE) != _PRIMARY_OWNER:
            raise OSError(f"the bus name {name} has another owner")

    async def release_name(self, name: str) -> None:
        """Release a bus name. Raises as `call`."""
        await self._bus_call("ReleaseName", "s", name)

    def disconnect(self) -> None:
        """Send what the socket takes at once, and close the connection. Calls in flight raise EOFError."""
        self._write()
        self._end(None)

    async def _bus_call(self, member: str, signature: str = "", *body: object) -> Any:
        reply = await self.call(
            Message(destination=BUS, path=BUS_PATH, interface=BUS, member=member, signature=signature, body=list(body))
        )
        if reply.message_type is MessageType.ERROR:
            raise OSError(f"{reply.error_name}: {reply.body[0] if reply.body else member}")
        return reply.body[0]

    # -- writing --------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        """Send what is unsent; go on when the socket is writable again."""
        while self._unsent and not self.lost.done():
            data, fds = self._unsent.popleft()
            pieces = [data]
            while not fds and self._unsent and not self._unsent[0][1]:  # all that have no descriptors, in one call
                pieces.append(self._unsent.popleft()[0])
            if not self._send_piece(memoryview(b"".join(pieces)) if len(pieces) > 1 else data, fds):
                self._loop.add_writer(self._sock, self._write)
                return
        self._writing = False
        if not self.lost.done():
            self._loop.remove_writer(self._sock)

    def _send_piece(self, data: memoryview, fds: Sequence[int]) -> bool:
        """Send data with its descriptors; return False if the socket is full. What is not sent is unsent again."""
        try:
            sent = socket.send_fds(self._sock, [data], fds) if fds else self._sock.send(data)
        except BlockingIOError:
            self._unsent.appendleft((data, fds))
            return False
        except OSError as error:
            _close(fds)
            self._end(error)
            return True
        _close(fds)  # they are sent with the first byte
        if sent < len(data):
            self._unsent.appendleft((data[sent:], ()))
        return True

    # -- reading --------------------------------------------------------------------------------------------------

    def _readable(self) -> None:
        try:
            data, ancillary, flags, _ = self._sock.recvmsg(READ_SIZE, _ANCILLARY_SIZE, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(error)
            return
        for level, kind, numbers in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):  # unix(7)
                self._received_fds.extend(array("i", numbers[: len(numbers) - len(numbers) % 4]))
        self._received += data
        if flags & socket.MSG_CTRUNC:  # the process has no room for them: later ones would be given to this message
            self._end(OSError("file descriptors of a message were lost"))
        elif not data:
            self._end(EOFError("it was closed"))
        self._dispatch_received()

    def _dispatch_received(self) -> None:
        """Dispatch the messages that have been received completely, without the dropped ones."""
        while self._received:
            if self._skip:
                skipped = min(self._skip, len(self._received))
                del self._received[:skipped]
                self._skip -= skipped
                continue
            header = _header(self._received)
            if header is None:
                return
            kind, end, size = header
            try:
                # Descriptors come with the first byte of their message.
                fields = _fields(self._received, end) if kind == _SIGNAL or self._received_fds else {}
            except (ValueError, IndexError, struct.error) as error:
                if kind == _SIGNAL:
                    self._drop_malformed(size)
                else:
                    self._end(OSError(f"a message has a malformed header: {error}"))
                continue
            if kind == _SIGNAL and _DESTINATION in fields and fields.get(_SENDER) != BUS:
                _close(self._own_fds(fields))
                self._skip = size
            elif len(self._received) >= size:
                data = bytes(memoryview(self._received)[:size])
                del self._received[:size]
                self._dispatch(data, fields)
            else:
                return

    def _drop_malformed(self, size: int) -> None:
        """Drop a signal whose header no client library writes.

        How many descriptors are the signal's is not known: all are closed. Another message that misses one of them then
        ends the connection, and gets none of a third one.
        """
        _close(self._received_fds)
        self._received_fds.clear()
        self._skip = size

    def _dispatch(self, data: bytes, fields: Mapping[int, str | int]) -> None:
        """Pass a message on; end the connection if it cannot be parsed or lacks a descriptor."""
        fds = self._own_fds(fields)
        if len(fds) < int(fields.get(_UNIX_FDS, 0)):
            _close(fds)
            self._end(OSError("file descriptors of a message were lost"))
            return
        try:
            message = decode(data, fds)
        except Exception as error:  # noqa: BLE001 - the bus lets well-formed messages through only
            _close(fds)
            self._end(OSError(f"a message cannot be parsed: {error}"))
            return
        if message.message_type is MessageType.METHOD_CALL:
            self._answer(message)
            return
        _close(message.unix_fds)  # no reply or signal in use has descriptors
        if message.message_type is MessageType.SIGNAL:
            self._handled(message)
        elif (reply := self._replies.get(message.reply_serial)) is not None and not reply.done():
            reply.set_result(message)

    def _own_fds(self, fields: Mapping[int, str | int]) -> list[int]:
        """Take the descriptors of a message with these header fields, as many as there are."""
        number = min(int(fields.get(_UNIX_FDS, 0)), len(self._received_fds))
        return [self._received_fds.popleft() for _ in range(number)]

    def _answer(self, message: Message) -> None:
        """Pass a method call to the handler; without its reply, reply as every connection must."""
        reply = self._handled(message) or _default_reply(message)
        if reply is not True:
            _close(message.unix_fds)
            if expects_reply(message) and self.connected:
                self.send(reply)

    def _handled(self, message: Message) -> object:
        """Return the result of the handler, or an error as the reply."""
        try:
            return self.handler(message) if self.handler else None
        except Exception:  # noqa: BLE001 - a bug in it must not end the connection
            _log.exception("internal error in the handler of %s", message.member)
            if message.message_type is not MessageType.METHOD_CALL:
                return None
            return Message.new_error(message, f"{BUS}.Error.Failed", f"internal error in {message.member}")

    def _end(self, error: Exception | None) -> None:
        """Close the connection; end the calls in flight with this error."""
        if self.lost.done():
            return
        if error is None:
            self.lost.set_result(None)
        else:
            self.lost.set_exception(error)
            self.lost.exception()  # retrieved: calls raise it
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._sock.close()
        _close((*self._received_fds, *(fd for _, fds in self._unsent for fd in fds)))
        for buffer in (self._received_fds, self._received, self._unsent):
            buffer.clear()
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(error or EOFError("it was closed"))


async def connect(address: str | None = None, handler: Handler | None = None) -> MessageBus:
    """Return a connection to a bus.

    Args:
        address: D-Bus address of a Unix socket; None: $DBUS_SYSTEM_BUS_ADDRESS, or that of the system bus.

    Raises:
        HostError: the bus cannot be reached, refuses the authentication, or does not answer in `CALL_TIMEOUT_S`.
    """
    given = address or os.environ.get("DBUS_SYSTEM_BUS_ADDRESS") or DEFAULT_ADDRESS
    try:
        name = _socket_name(given)
        async with asyncio.timeout(CALL_TIMEOUT_S):
            bus = MessageBus(await _authenticated(name), handler)
            try:
                await bus.hello()
            except BaseException:
                bus.disconnect()
                raise
    except (OSError, EOFError, ValueError) as error:  # TimeoutError is an OSError
        reason = str(error) or "it does not answer"
        if isinstance(error, OSError) and error.strerror:
            reason = f"{given.removeprefix('unix:path=')}: {error.strerror}"
        raise HostError(f"the system bus cannot be reached: {reason}.", advice(SYSTEM_BUS)) from error
    return bus


async def _authenticated(name: str) -> socket.socket:
    """Return a socket that is connected to a bus, authenticated as this process's user, and can pass descriptors."""
    loop = asyncio.get_running_loop()
    identity = str(os.geteuid()).encode().hex()
    with ExitStack() as opened:
        sock = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        sock.setblocking(False)  # before connect(2), which waits for a place in a full backlog
        sock.connect(name)
        await loop.sock_sendall(sock, f"\0AUTH EXTERNAL {identity}\r\nNEGOTIATE_UNIX_FD\r\n".encode())
        for expected in (b"OK ", b"AGREE_UNIX_FD"):
            line = await _line(sock)
            if not line.startswith(expected):
                raise OSError(f"the bus refuses the authentication: {line.decode(errors='replace')}")
        await loop.sock_sendall(sock, b"BEGIN\r\n")
        opened.pop_all()
    return sock


def _default_reply(call: Message) -> Message:
    if (call.interface, call.member) == (f"{BUS}.Peer", "Ping"):
        return Message.new_method_return(call)
    text = f"{call.interface}.{call.member} is no method of {call.path}"
    return Message.new_error(call, f"{BUS}.Error.UnknownMethod", text)


def _socket_name(address: str) -> str:
    """Return the path of an address, or the name of an abstract socket (D-Bus specification, "Server Addresses")."""
    for each in address.split(";"):
        transport, _, rest = each.partition(":")
        options = dict(option.partition("=")[::2] for option in rest.split(","))
        if transport == "unix" and (name := options.get("path") or options.get("abstract")):
            if "%" in name:
                name = unquote(name)
            return name if "path" in options else f"\0{name}"
    raise ValueError(f"bus address {address!r} is not of a Unix socket: expected one such as {DEFAULT_ADDRESS}")


async def _line(sock: socket.socket) -> bytes:
    """Read a line of the authentication, byte by byte: what follows belongs to another reader."""
    line = b""
    while not line.endswith(b"\r\n"):
        byte = await asyncio.get_running_loop().sock_recv(sock, 1)
        if not byte:
            raise EOFError("it was closed during the authentication")
        line += byte
    return line[:-2]


def _close(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)


def _duplicates(fds: Iterable[int]) -> list[int]:
    """Return duplicates of descriptors; none is left if one cannot be made."""
    duplicates: list[int] = []
    try:
        duplicates.extend(map(os.dup, fds))
    except OSError:
        _close(duplicates)
        raise
    return duplicates


def _order(data: bytearray) -> str:
    """Return the order of bytes of a message, as `struct` writes it."""
    return "<" if data[0] == ord("l") else ">"


def _header(data: bytearray) -> tuple[int, int, int] | None:
    """Return the type of the message that the data begins with, the end of its header fields, and its size.

    None unless the data has all of the fields.
    """
    if len(data) < _FIXED:
        return None
    body, _, fields = struct.unpack_from(f"{_order(data)}III", data, 4)
    end = _FIXED + fields
    return (data[1], end, end + -end % 8 + body) if len(data) >= end else None


def _fields(data: bytearray, end: int) -> dict[int, str | int]:
    """Return the header fields by their codes: texts and numbers.

    Raises:
        ValueError: it has a field that the D-Bus specification ("Header Fields") does not have, or one of another type.
            dbus-daemon removes such fields; dbus-broker passes them on.
    """
    found: dict[int, str | int] = {}
    position, order = _FIXED, _order(data)
    while position < end:
        position += -position % 8
        code, length = data[position], data[position + 1]
        kind = bytes(data[position + 2 : position + 2 + length])
        position += length + 3
        if _FIELD_TYPES.get(code) != kind or code in found:
            raise ValueError(f"field {code} of type {kind!r}")
        found[code], position = _value(data, position, kind, order)
        if position > end:
            raise ValueError(f"field {code} is longer than the header")
    return found


def _value(data: bytearray, position: int, kind: bytes, order: str) -> tuple[str | int, int]:
    """Return the value of a header field, and the position after it."""
    if kind == b"g":
        begin, length = position + 1, data[position]
    else:
        position += -position % 4
        (length,) = struct.unpack_from(f"{order}I", data, position)
        begin = position + 4
    if kind == b"u":
        return length, begin
    return data[begin : begin + length].decode(), begin + length + 1
