"""A connection to the system bus without an event loop: sd-bus(3), through libsystemd.

For short verbs that only read. The imports of an event loop and of a D-Bus library in Python take several times as long
as the whole of such a verb.
"""

import ctypes
import os
import time
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from solo5_systemd.base.errors import HostError
from solo5_systemd.bus.peers import Call, remote_error

LIBRARY = "libsystemd.so.0"
SOCKET = "/run/dbus/system_bus_socket"
"""The socket of the system bus (dbus.socket)."""

CALL_TIMEOUT_S = 25.0
"""Timeout of one call: that of dbus-daemon for an activation (`service_start_timeout`)."""

MAX_IN_FLIGHT = 100
"""Calls that are sent before the first reply is awaited: dbus-daemon refuses more than 128 pending ones of a connection
(max_replies_per_connection of dbus-daemon(1)), as many as there are while PID 1 is busy."""

_WAIT_US = 500_000
"""Microseconds of one sd_bus_wait(3), which a signal does not always end."""

_NUMBERS = {
    "y": ctypes.c_uint8,
    "b": ctypes.c_int,
    "n": ctypes.c_int16,
    "q": ctypes.c_uint16,
    "i": ctypes.c_int32,
    "u": ctypes.c_uint32,
    "x": ctypes.c_int64,
    "t": ctypes.c_uint64,
    "d": ctypes.c_double,
}
_TEXTS = frozenset("sog")


class _Error(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("message", ctypes.c_char_p), ("need_free", ctypes.c_int))


@cache
def _library() -> ctypes.CDLL:
    """Load libsystemd.

    Raises:
        DependencyError: it is missing.
    """
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        from solo5_systemd.base.dependencies import dependency_error

        raise dependency_error(error) from error
    library.sd_bus_message_get_error.restype = ctypes.POINTER(_Error)
    return library


class BlockingBus:
    """A connection to the system bus, or to the one of $DBUS_SYSTEM_BUS_ADDRESS; to be used by one thread.

    Raises:
        DependencyError: libsystemd is missing.
        HostError: the bus cannot be reached.
    """

    def __init__(self) -> None:
        self._library = _library()
        self._bus = ctypes.c_void_p()
        result = self._library.sd_bus_open_system(ctypes.byref(self._bus))
        if result < 0:
            raise _unreachable(os.strerror(-result))

    def close(self) -> None:
        """Disconnect."""
        self._library.sd_bus_close_unref(self._bus)

    def call(self, destination: str, call: Call, timeout_s: float = CALL_TIMEOUT_S) -> list[Any]:
        """Call a method and return the reply's body: variants as their values, and arrays of pairs as dictionaries.

        Raises:
            Solo5Error: the peer returned an error of `errors`.
            RemoteError: the peer returned another error.
            HostError: timeout, or the connection was lost.
        """
        (reply,) = self.call_all(destination, [call], timeout_s)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def call_all(
        self, destination: str, calls: Sequence[Call], timeout_s: float = CALL_TIMEOUT_S
    ) -> list[list[Any] | Exception]:
        """Call methods of one peer without waiting for each reply; return the replies, or errors, in order.

        Args:
            destination: bus name of the peer.
            calls: which it answers in this order.
            timeout_s: seconds for the replies to `MAX_IN_FLIGHT` calls.

        Raises:
            HostError: timeout, or the connection was lost.
        """
        replies: list[list[Any] | Exception] = []
        for start in range(0, len(calls), MAX_IN_FLIGHT):
            replies += self._batch(destination, calls[start : start + MAX_IN_FLIGHT], timeout_s)
        return replies

    def _batch(self, destination: str, calls: Sequence[Call], timeout_s: float) -> Iterator[list[Any] | Exception]:
        member = calls[0].member
        end = time.monotonic() + timeout_s
        cookies = [self._send(destination, call) for call in calls]
        missing = set(cookies)
        found: dict[int, list[Any] | Exception] = {}
        while missing:
            # Initialized each time: sd_bus_process(3) does not always write it.
            message = ctypes.c_void_p()
            is_idle = not self._checked(self._library.sd_bus_process(self._bus, ctypes.byref(message)), member)
            try:
                cookie = self._reply_cookie(message)
                if cookie in missing:
                    found[cookie] = self._reply(message, member)
                    missing.remove(cookie)
                    continue
            finally:
                self._library.sd_bus_message_unref(message)
            # After other messages, too: any user may send as many signals as the bus forwards.
            if time.monotonic() >= end:
                if self._library.sd_bus_is_ready(self._bus) > 0:
                    raise HostError(f"{destination} did not answer {member} within {timeout_s:.0f} seconds.")
                raise _unreachable("it does not answer")
            if is_idle:
                self._library.sd_bus_wait(self._bus, ctypes.c_uint64(_WAIT_US))
        return (found[each] for each in cookies)

    def _reply_cookie(self, message: ctypes.c_void_p) -> int:
        """Return the cookie of the call that a message replies to; 0 if it is no reply, or NULL."""
        cookie = ctypes.c_uint64()
        if message.value:
            self._library.sd_bus_message_get_reply_cookie(message, ctypes.byref(cookie))
        return cookie.value

    def _send(self, destination: str, call: Call) -> int:
        message, cookie = ctypes.c_void_p(), ctypes.c_uint64()
        names = (name.encode() for name in (destination, call.path, call.interface, call.member))
        self._checked(
            self._library.sd_bus_message_new_method_call(self._bus, ctypes.byref(message), *names), call.member
        )
        try:
            for argument in call.body:
                if isinstance(argument, str):
                    result = self._library.sd_bus_message_append(message, b"s", argument.encode())
                else:
                    strings = (ctypes.c_char_p * (len(argument) + 1))(*(each.encode() for each in argument), None)
                    result = self._library.sd_bus_message_append_strv(message, strings)
                self._checked(result, call.member)
            self._checked(self._library.sd_bus_send(self._bus, message, ctypes.byref(cookie)), call.member)
        finally:
            self._library.sd_bus_message_unref(message)
        return cookie.value

    def _reply(self, message: ctypes.c_void_p, member: str) -> list[Any] | Exception:
        if self._library.sd_bus_message_is_method_error(message, None) > 0:
            error = self._library.sd_bus_message_get_error(message).contents
            name = (error.name or b"").decode("utf-8", "replace")
            return remote_error(name, (error.message or b"").decode("utf-8", "replace") or name)
        return self._values(message, member)

    def _values(self, message: ctypes.c_void_p, member: str) -> list[Any]:
        """Return the values up to the end of the message, or of the container that was entered."""
        kind, contents = ctypes.c_char(), ctypes.c_char_p()
        values: list[Any] = []
        while self._checked(
            self._library.sd_bus_message_peek_type(message, ctypes.byref(kind), ctypes.byref(contents)), member
        ):
            code, inner = kind.value.decode(), (contents.value or b"").decode()
            if code in _TEXTS or code in _NUMBERS:
                place = _place(code)
                result = self._library.sd_bus_message_read_basic(message, kind, ctypes.byref(place))
                self._checked(result, member)
                values.append(_value(code, place.value))
            elif code + inner == "ay":
                values.append(self._bytes(message, member))
            else:
                self._checked(self._library.sd_bus_message_enter_container(message, kind, inner.encode()), member)
                held = self._rows(message, inner, member) if _is_row(code, inner) else self._values(message, member)
                self._checked(self._library.sd_bus_message_exit_container(message), member)
                values.append(held[0] if code == "v" else dict(held) if inner[:1] == "{" else held)
        return values

    def _rows(self, message: ctypes.c_void_p, signature: str, member: str) -> list[list[Any]]:
        """Return the rest of an array of structures of basic types: one library call for each structure."""
        codes = signature[1:-1]
        places = [_place(code) for code in codes]
        pointers = [ctypes.byref(place) for place in places]
        read, form = self._library.sd_bus_message_read, signature.encode()
        rows: list[list[Any]] = []
        while self._checked(read(message, form, *pointers), member):
            rows.append([_value(code, place.value) for code, place in zip(codes, places, strict=True)])
        return rows

    def _bytes(self, message: ctypes.c_void_p, member: str) -> bytes:
        data, size = ctypes.c_void_p(), ctypes.c_size_t()
        result = self._library.sd_bus_message_read_array(
            message, ctypes.c_char(b"y"), ctypes.byref(data), ctypes.byref(size)
        )
        self._checked(result, member)
        return ctypes.string_at(data, size.value) if size.value else b""

    def _checked(self, result: int, member: str) -> int:
        """Return a result of the library, or raise its errno."""
        if result < 0:
            raise HostError(f"the connection to the system bus broke during {member}: {os.strerror(-result)}.")
        return result


def _unreachable(reason: str) -> HostError:
    from solo5_systemd.base.dependencies import advice

    where = os.environ.get("DBUS_SYSTEM_BUS_ADDRESS", SOCKET)
    return HostError(f"the system bus cannot be reached: {where}: {reason}.", advice(SOCKET))


def _place(code: str) -> Any:
    return ctypes.c_char_p() if code in _TEXTS else _NUMBERS[code]()


def _value(code: str, value: Any) -> object:
    if code in _TEXTS:
        return value.decode()  # sd-bus has checked that it is UTF-8
    return bool(value) if code == "b" else value


def _is_row(code: str, inner: str) -> bool:
    """Return whether a container is an array of structures, or of pairs, of basic types."""
    return code == "a" and inner[0] in "({" and all(each in _TEXTS or each in _NUMBERS for each in inner[1:-1])
