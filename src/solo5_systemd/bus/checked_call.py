"""The border to PID 1: the one place from which a call leaves for it, with everything in it checked.

PID 1 writes the properties of a transient unit into a file, most of them as they are, and reads that file again at each
daemon-reload. So a text that a unit file reads as structure, or as another value, does not pass, whatever made it.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from dbus_next import Variant

from solo5_systemd.bus.connection import Connection
from solo5_systemd.errors import InvalidRequestError
from solo5_systemd.text import bare, bounded, structure

SYSTEMD = "org.freedesktop.systemd1"

_SHOWN = 80
_DEVICE = re.compile(r"[^\s\"'\\%=]*")
_FORMS: Mapping[str, Callable[[str], object]] = {
    **dict.fromkeys(
        ("DeviceAllow", "IOReadBandwidthMax", "IOReadIOPSMax", "IOWriteBandwidthMax", "IOWriteIOPSMax"),
        _DEVICE.fullmatch,
    ),
    **dict.fromkeys(("BindPaths", "BindReadOnlyPaths"), bare),
    "Description": lambda text: text == text.strip(),
}
"""Properties that systemd (252 to 257) writes into the unit's file without quotes: which texts it reads back."""


async def call(
    connection: Connection,
    path: str,
    interface: str,
    member: str,
    signature: str = "",
    body: Sequence[Any] = (),
    unix_fds: Sequence[int] = (),
) -> list[Any]:
    """Call a method of PID 1 and return the reply's body.

    Raises:
        InvalidRequestError: a text in the call would not come back from a unit file as it is; nothing was sent.
        Solo5Error: see `Connection.call`.
        RemoteError: see `Connection.call`.
    """
    for what, text in _texts(body, f"argument of {member}"):
        _check(what, text)
    return await connection.call(SYSTEMD, path, interface, member, signature, body, unix_fds)


def _check(what: str, text: str) -> None:
    fault = structure(text)
    if not fault and what in _FORMS and not _FORMS[what](text):
        fault = "a blank, quote or other character that systemd writes unquoted"
    if fault:
        raise InvalidRequestError(
            f"unit property {what} has {fault} in “{bounded(text, _SHOWN)}”: expected text that "
            "a unit file reproduces unchanged."
        )


def _texts(value: object, what: str) -> Iterator[tuple[str, str]]:
    """Yield every text in a call's body, with the property that it belongs to; masks and addresses are no text."""
    match value:
        case str():
            yield what, value
        case Variant():
            yield from _texts(_decoded(value.value) if value.signature == "aay" else value.value, what)
        case [str() as name, Variant() as variant]:
            yield what, name
            yield from _texts(variant, name)
        case list() | tuple():
            for item in value:
                yield from _texts(item, what)
        case _:
            pass  # a number, a mask, an address


def _decoded(assignments: Sequence[bytes]) -> list[str]:
    return [bytes(each).decode("utf-8", "surrogateescape") for each in assignments]
