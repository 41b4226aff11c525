"""A connection to the system bus without an event loop: sd-bus(3), through pystemd.

For short verbs that only read (docs/decisions/dbus-connection.md).
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pystemd.dbusexc import DBusBaseError, DBusTimeoutError
from pystemd.dbuslib import DBus

from solo5_systemd.base.dependencies import SYSTEM_BUS, advice
from solo5_systemd.base.errors import HostError
from solo5_systemd.bus.peers import Call, remote_error

_GET_ID = (b"org.freedesktop.DBus", b"/org/freedesktop/DBus", b"org.freedesktop.DBus", b"GetId")
"""A call that every bus answers."""


class BlockingBus:
    """A connection to the system bus, or to the one of $DBUS_SYSTEM_BUS_ADDRESS; to be used by one thread.

    sd-bus(3) gives up a call after 25 seconds, as dbus-daemon gives up an activation, or after $SYSTEMD_BUS_TIMEOUT.

    Raises:
        HostError: the bus cannot be reached.
    """

    def __init__(self) -> None:
        self._bus = DBus()
        try:
            self._bus.open()
        except DBusBaseError as error:
            where = os.environ.get("DBUS_SYSTEM_BUS_ADDRESS", SYSTEM_BUS)
            reason = os.strerror(-error.errno)
            raise HostError(f"the system bus cannot be reached: {where}: {reason}.", advice(SYSTEM_BUS)) from error

    def close(self) -> None:
        """Disconnect."""
        self._bus.close()

    def call(self, destination: str, call: Call) -> Any:
        """Call a method that replies with one value, and return it: an `ay` as a list of numbers, a struct as a tuple.

        Raises:
            Solo5Error: the peer returned an error of `errors`.
            RemoteError: the peer returned another error.
            HostError: timeout, or the connection was lost.
        """
        names = (name.encode() for name in (destination, call.path, call.interface, call.member))
        try:
            return _decoded(self._bus.call_method(*names, list(_arguments(call.body))).body)
        except DBusTimeoutError as error:  # NoReply is another
            raise HostError(f"{destination} did not answer {call.member}: {_text(error)}.") from error
        except DBusBaseError as error:
            if self._is_lost():
                raise HostError(
                    f"the connection to the system bus broke during {call.member}: {_text(error)}."
                ) from error
            raise remote_error(_error_name(error), _text(error)) from error

    def _is_lost(self) -> bool:
        """Return whether the bus itself does not answer.

        Where `get_unique_name` fails, pystemd 0.11 ends the process.
        """
        try:
            self._bus.call_method(*_GET_ID, [])
        except DBusBaseError:
            return True
        return False


def _arguments(body: Iterable[str | Sequence[str]]) -> Iterator[tuple[int, bytes | None]]:
    """Yield pystemd's arguments for strings (`s`) and lists of strings (`as`): pairs of a type's code and a value."""
    for argument in body:
        if isinstance(argument, str):
            yield ord("s"), argument.encode()
        else:
            yield ord("a"), b"s"
            yield from ((ord("s"), each.encode()) for each in argument)
            yield -1, None  # the end of the array


def _error_name(error: DBusBaseError) -> str:
    """Return the D-Bus error name, which pystemd has in the names of its classes for those that it defines."""
    if error.err_name:
        return str(error.err_name.decode())
    return f"org.freedesktop.DBus.Error.{type(error).__name__.removeprefix('DBus').removesuffix('Error')}"


def _text(error: DBusBaseError) -> str:
    return str(error.err_message.decode("utf-8", "replace")) or _error_name(error)


def _decoded(value: Any) -> Any:
    """Return a value of a reply with its strings decoded; sd-bus has checked that they are UTF-8."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, list | tuple):
        return type(value)([each.decode() if type(each) is bytes else _decoded(each) for each in value])
    if isinstance(value, dict):
        return {_decoded(key): _decoded(each) for key, each in value.items()}
    return value
