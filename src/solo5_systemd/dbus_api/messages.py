"""D-Bus messages, by dbus-fast where it is installed, and by dbus-next otherwise: the only import of either.

The two have the same classes. dbus-fast is compiled, and needs a fifth of the processor time for a call. Before 2.11.1
(Debian 12 has 1.84.2) it counts the characters of a text instead of its bytes, so that the bus closes the connection.
"""

import io
from collections.abc import Sequence
from typing import Any

from solo5_systemd.dependencies import without_init


def _check_text(message: Any) -> None:
    """Check that a class of messages encodes text that is not ASCII.

    Raises:
        ImportError: it does not.
    """
    probe = message(path="/", interface="a.b", member="C", signature="s", body=["é"], serial=1)
    if not bytes(probe._marshall(True)).endswith(b"\x02\0\0\0\xc3\xa9\0"):  # noqa: SLF001 - as in `encode`
        raise ImportError("dbus_fast counts characters instead of bytes")


try:
    with without_init("dbus_fast"):  # connections, introspection and an XML parser: 1 MB of memory
        import dbus_fast.errors  # noqa: F401 - first: the modules import each other
        from dbus_fast._private.unmarshaller import Unmarshaller
        from dbus_fast.constants import MessageType
        from dbus_fast.message import Message
        from dbus_fast.signature import SignatureTree, Variant

    _check_text(Message)
    LIBRARY = "dbus_fast"
except ImportError:
    with without_init("dbus_next"):
        import dbus_next.errors  # noqa: F401 - first: the modules import each other
        from dbus_next._private.unmarshaller import Unmarshaller
        from dbus_next.constants import MessageType
        from dbus_next.message import Message
        from dbus_next.signature import SignatureTree, Variant

    LIBRARY = "dbus_next"
"""The module in use."""

__all__ = ["LIBRARY", "Message", "MessageType", "SignatureTree", "Variant", "decode", "encode", "expects_reply"]

_NO_REPLY_EXPECTED = 1


def encode(message: Message) -> bytes:
    """Return a message as bytes; its file descriptors are sent beside them."""
    return bytes(message._marshall(True))  # noqa: SLF001 - both libraries marshal by this method only


def expects_reply(call: Message) -> bool:
    """Return whether the caller of a method waits for its reply."""
    return not call.flags.value & _NO_REPLY_EXPECTED


def decode(data: bytes, fds: Sequence[int] = ()) -> Message:
    """Return the message of its bytes.

    Args:
        data: exactly one message, well-formed: the bus has checked it.
        fds: its file descriptors.
    """
    message = Unmarshaller(io.BytesIO(data)).unmarshall()
    message.unix_fds = list(fds)
    return message
