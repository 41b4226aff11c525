"""dbus-next's connection, without the signals that any local user may address to it.

The policy of the system bus lets every user send a signal to every connection. No match rule is needed for such a
signal, and no program that we listen to sends one: only the bus itself does. The library would parse its body, of up to
32 MiB, before anything else is answered, and would never close the descriptors that came along.
"""

import os
from typing import Any

from dbus_next import Message, Variant
from dbus_next._private.unmarshaller import Unmarshaller  # the last release of dbus-next is of 2021
from dbus_next.aio import MessageBus as LibraryBus
from dbus_next.constants import MessageType

BUS = "org.freedesktop.DBus"

_TYPE = 1  # offset of a message's type in its header
_PATH, _INTERFACE, _MEMBER, _DESTINATION, _SENDER = 1, 2, 3, 6, 7
_IN_ITS_PLACE = ([_PATH, Variant("o", "/")], [_INTERFACE, Variant("s", "x.x")], [_MEMBER, Variant("s", "x")])
"""Header fields of a signal without a body, which cost nothing to check."""


class MessageBus(LibraryBus):  # type: ignore[misc] # the library carries no types
    """A connection to a bus."""

    async def connect(self) -> "MessageBus":
        await super().connect()
        return self

    def _create_unmarshaller(self) -> "_Unmarshaller":
        return _Unmarshaller(self._stream, self._sock if self._negotiate_unix_fd else None)

    def _on_message(self, message: Message) -> None:
        if not self._unmarshaller.dropped:
            super()._on_message(message)
        if self._unmarshaller.dropped or message.message_type is not MessageType.METHOD_CALL:
            for fd in message.unix_fds:  # no reply or signal that we use carries any
                os.close(fd)


class _Unmarshaller(Unmarshaller):  # type: ignore[misc] # the library carries no types
    """Reads one message.

    Attributes:
        dropped: it is a signal for this connection alone, and not the bus's own. Its body has not been read.
    """

    def __init__(self, stream: Any, sock: Any = None) -> None:
        super().__init__(stream, sock)
        self.dropped = False
        self._is_header = True

    def read_argument(self, type_: Any) -> Any:
        """Read a value; the first of a message is the array of its header fields."""
        if not self._is_header:
            return super().read_argument(type_)
        self._is_header = False
        fields = super().read_argument(type_)
        named = {code: variant.value for code, variant in fields}
        is_signal = self.buf[_TYPE] == MessageType.SIGNAL.value
        self.dropped = is_signal and _DESTINATION in named and named.get(_SENDER) != BUS
        return _IN_ITS_PLACE if self.dropped else fields
