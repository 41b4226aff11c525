"""Messages that are parsed, and unicast signals that are dropped by their header."""

from io import BytesIO

import pytest
from dbus_next import Message, MessageType, Variant

from solo5_systemd.dbus_api.message_bus import BUS, _Unmarshaller


def read(message: Message) -> _Unmarshaller:
    """Return the parser of a message, after it has parsed it as from the bus."""
    message.serial = 1
    unmarshaller = _Unmarshaller(BytesIO(_sent_by(message.sender, bytes(message._marshall()))))
    assert unmarshaller.unmarshall() is not None
    return unmarshaller


def _sent_by(sender: str, message: bytes) -> bytes:
    """Add the header field that the bus adds."""
    end = 16 + int.from_bytes(message[12:16], "little")
    body = message[end + -end % 8 :]
    header = message[:end] + bytes(-end % 8)
    header += b"\7\1s\0" + len(sender).to_bytes(4, "little") + sender.encode() + b"\0"
    header = header[:12] + (len(header) - 16).to_bytes(4, "little") + header[16:]
    return header + bytes(-len(header) % 8) + body


def signal(sender: str = ":1.7", destination: str | None = None, signature: str = "as") -> Message:
    return Message(
        message_type=MessageType.SIGNAL, path="/a", interface="a.b", member="C", sender=sender,
        destination=destination, signature=signature, body=[["x", "y"]],
    )  # fmt: skip


@pytest.mark.parametrize(
    "message",
    [
        signal(),
        signal(sender=BUS, destination=":1.4"),
        Message(
            message_type=MessageType.METHOD_RETURN, reply_serial=3, sender=":1.7", destination=":1.4", signature="as",
            body=[["x", "y"]],
        ),
        Message(
            path="/a", interface="a.b", member="C", sender=":1.7", destination=":1.4", signature="as",
            body=[["x", "y"]],
        ),
    ],
)  # fmt: skip
def test_what_was_subscribed_called_or_answered_is_read_whole(message: Message) -> None:
    found = read(message)
    assert not found.dropped
    assert (found.message.member, found.message.body) == (message.member, message.body)


def test_a_signal_to_this_connection_alone_is_dropped_unread() -> None:
    found = read(signal(destination=":1.4"))
    assert found.dropped
    assert (found.message.body, found.message.signature, found.message.member) == ([], "", "x")


def test_a_value_of_the_headers_type_in_a_body_is_a_value() -> None:
    fields = [[6, Variant("s", ":1.4")]]
    message = signal()
    message.signature, message.body = "a(yv)", [fields]
    found = read(message)
    assert not found.dropped
    assert found.message.body[0][0][1].value == ":1.4"
