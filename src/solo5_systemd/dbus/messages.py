"""D-Bus messages, by dbus-fast where it is installed, and by dbus-next otherwise: the only import of either.

The two have the same classes. dbus-fast is compiled, and needs a fifth of the processor time for a call. Before 2.11.1
(Debian 12 has 1.84.2) it counts the characters of a text instead of its bytes, so that the bus closes the connection.
"""

import io
from collections.abc import Sequence
from typing import Any

from solo5_systemd.dbus.interfaces import RECORD, RECORDS, type_of


def _check_text(message: Any) -> None:
    """Check that a class of messages encodes text that is not ASCII.

    Raises:
        ImportError: it does not.
    """
    probe = message(path="/", interface="a.b", member="C", signature="s", body=["é"], serial=1)
    if not bytes(probe._marshall(True)).endswith(b"\x02\0\0\0\xc3\xa9\0"):  # noqa: SLF001 - as in `encode`
        raise ImportError("dbus_fast counts characters instead of bytes")


try:
    from dbus_fast import Message, MessageType, SignatureTree, Variant
    from dbus_fast._private.unmarshaller import Unmarshaller

    _check_text(Message)
    LIBRARY = "dbus_fast"
except ImportError:
    from dbus_next import Message, MessageType, SignatureTree, Variant
    from dbus_next._private.unmarshaller import Unmarshaller

    LIBRARY = "dbus_next"
"""The module in use."""

__all__ = [
    "LIBRARY",
    "Message",
    "MessageType",
    "SignatureTree",
    "Variant",
    "decode",
    "encode",
    "expects_reply",
    "from_wire",
    "to_wire",
]

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
    """
    message = Unmarshaller(io.BytesIO(data)).unmarshall()
    message.unix_fds = list(fds)
    return message


def to_wire(kind: str, value: Any) -> Any:
    """Return a plain value of a type of D-Bus as the libraries marshal it: with variants in tables."""
    if kind == RECORD:
        return {key: Variant(type_of(each), to_wire(type_of(each), each)) for key, each in value.items()}
    return [to_wire(RECORD, each) for each in value] if kind == RECORDS else value


def from_wire(value: Any) -> Any:
    """Return a value as it was before `to_wire`."""
    kind = type(value)
    if kind is Variant:
        return value.value if len(value.signature) == 1 else from_wire(value.value)
    if kind is dict:
        return {key: from_wire(each) for key, each in value.items()}
    return [*map(from_wire, value)] if kind is list else value
