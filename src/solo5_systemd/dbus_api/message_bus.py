"""dbus-next's connection, which drops unicast signals of local users.

The policy of the system bus lets every user send a signal to any connection, without a match rule. Of this
package's peers only the bus itself sends unicast signals. dbus-next would parse a body of up to 32 MiB before any other
message, and would never close the file descriptors of the signal.
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
_EMPTY_SIGNAL = ([_PATH, Variant("o", "/")], [_INTERFACE, Variant("s", "x.x")], [_MEMBER, Variant("s", "x")])
"""Header fields of a signal without a body, in the place of a dropped one's."""


class MessageBus(LibraryBus):  # type: ignore[misc] # the library carries no types
    """A connection to a bus that drops unicast signals, except those of the bus."""

    async def connect(self) -> "MessageBus":
        """Connect and authenticate."""
        await super().connect()
        return self

    def _create_unmarshaller(self) -> "_Unmarshaller":
        return _Unmarshaller(self._stream, self._sock if self._negotiate_unix_fd else None)

    def _on_message(self, message: Message) -> None:
        if not self._unmarshaller.dropped:
            super()._on_message(message)
        if self._unmarshaller.dropped or message.message_type is not MessageType.METHOD_CALL:
            for fd in message.unix_fds:  # no reply or signal in use has file descriptors
                os.close(fd)


class _Unmarshaller(Unmarshaller):  # type: ignore[misc] # the library carries no types
    """The parser of one message.

    Attributes:
        dropped: it is a unicast signal, and not from the bus. Its body has not been parsed.
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
        return _EMPTY_SIGNAL if self.dropped else fields
