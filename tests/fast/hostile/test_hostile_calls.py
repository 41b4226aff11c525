"""Calls of our services' methods with any body: one error of ours, and never a fault of the service."""

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.hostile.values import TEXTS

from solo5_systemd.base.decode import Fields
from solo5_systemd.base.errors import BY_DBUS_NAME, InvalidRequestError
from solo5_systemd.base.names import task_name
from solo5_systemd.dbus.interfaces import NETWORK1 as NETWORK
from solo5_systemd.dbus.interfaces import RELAY1 as RELAY
from solo5_systemd.dbus.interfaces import Interface
from solo5_systemd.dbus.messages import Message, MessageType, SignatureTree, to_wire
from solo5_systemd.dbus.service import Service
from solo5_systemd.network.model import Request
from solo5_systemd.settings.records import record

if TYPE_CHECKING:
    from solo5_systemd.dbus.message_bus import MessageBus

METHODS = [(interface, member) for interface in (NETWORK, RELAY) for member in interface.methods]
SIGNATURES = ["", "s", "sa(ssss)a(ssqqs)", "sa{sv}s", "ssthh", "b", "as", "t", "h", "hhhh"]
BASIC: dict[str, st.SearchStrategy[Any]] = {
    "s": TEXTS,
    "q": st.integers(0, (1 << 16) - 1),
    "t": st.integers(0, (1 << 64) - 1),
    "b": st.booleans(),
    "h": st.integers(0, (1 << 32) - 1),
}


def bodies(signature: str) -> st.SearchStrategy[list[Any]]:
    return st.tuples(*map(_values, SignatureTree(signature).types)).map(list)


WORDS = st.sampled_from(["nics", "ports", "names", "namespace", "nic", "host_port", "limits", "egress"]) | TEXTS
LEAVES = TEXTS | st.booleans() | st.integers(0, (1 << 63) - 1) | st.lists(TEXTS, max_size=2)


@st.composite
def tables(draw: st.DrawFn, depth: int = 2) -> dict[str, object]:
    """Return a table of plain values, some of them tables and lists of tables, as D-Bus has it."""
    table: dict[str, object] = draw(st.dictionaries(WORDS, LEAVES, max_size=3))
    if depth and draw(st.booleans()):
        table[draw(WORDS)] = [draw(tables(depth - 1)) for _ in range(draw(st.integers(1, 2)))]
        table[draw(WORDS)] = draw(tables(depth - 1))
    return cast("dict[str, object]", to_wire("a{sv}", table)) if depth == 2 else table


def _values(kind: Any) -> st.SearchStrategy[Any]:
    if kind.signature == "a{sv}":
        return tables()
    if kind.token == "a":
        return st.lists(_values(kind.children[0]), max_size=2)
    if kind.token == "(":
        return st.tuples(*map(_values, kind.children)).map(list)
    return BASIC[kind.token]


class Bus:
    def __init__(self) -> None:
        self.sent: list[Message] = []

    def send(self, message: Message) -> None:
        self.sent.append(message)


async def parse(*arguments: Any) -> Sequence[object]:
    """Read what the methods of both services read of their arguments, and refuse what was sound."""
    if len(arguments) == 2 and isinstance(arguments[1], dict):
        record(Request, Fields(arguments[1]))
    elif arguments and isinstance(arguments[0], str):
        task_name(arguments[0])
    raise InvalidRequestError(f"{arguments!r} is of no use here.")


def answer(interface: Interface, member: str, signature: str, body: Sequence[object]) -> Message:
    bus = Bus()
    service = Service(cast("MessageBus", bus), interface, dict.fromkeys(interface.methods, parse), lambda: False)
    message = Message(path=interface.path, interface=interface.name, member=member, signature=signature, serial=1)
    message.body = list(body)
    with suppress(StopIteration):
        service._handle(message).send(None)  # nothing in it waits; an event loop for each example takes longer
    [reply] = bus.sent
    return reply


@pytest.mark.parametrize("interface, member", METHODS, ids=[member for _, member in METHODS])
@given(st.data())
def test_a_call_with_any_body_is_answered_by_one_error_of_ours(
    interface: Interface, member: str, data: st.DataObject
) -> None:
    takes = interface.methods[member].in_signature
    signature = data.draw(st.sampled_from([takes, takes, *SIGNATURES]))
    reply = answer(interface, member, signature, data.draw(bodies(signature)))
    assert reply.message_type is MessageType.ERROR
    assert BY_DBUS_NAME[str(reply.error_name)] is InvalidRequestError
    [text] = reply.body
    assert text.isprintable()
