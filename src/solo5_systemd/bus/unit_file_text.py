"""The check of all text in calls of PID 1.

Text that PID 1 would read from its unit file as syntax, or as another value, is refused here, whatever its source:
`Connection.call` checks each call (docs/decisions/text-to-pid1.md).
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.base.sanitize import bounded, is_plain_path, unit_file_syntax
from solo5_systemd.dbus.messages import Variant

_SHOWN = 80
_DEVICE = re.compile(r"[^\s\"'\\%=]*")
_FORMS: Mapping[str, Callable[[str], object]] = {
    **dict.fromkeys(
        ("DeviceAllow", "IOReadBandwidthMax", "IOReadIOPSMax", "IOWriteBandwidthMax", "IOWriteIOPSMax"),
        _DEVICE.fullmatch,
    ),
    **dict.fromkeys(("BindPaths", "BindReadOnlyPaths"), is_plain_path),
    "Description": lambda text: text == text.strip(),
}
"""Properties that systemd (252 to 257) writes unquoted, each with a test for text that it parses back unchanged."""


def check_texts(member: str, body: Sequence[Any]) -> None:
    """Check the texts of a call of PID 1.

    Raises:
        InvalidRequestError: a unit file would not reproduce one.
    """
    for what, text in _texts(body, f"argument of {member}"):
        fault = unit_file_syntax(text)
        if not fault and what in _FORMS and not _FORMS[what](text):
            fault = "a blank, quote or other character that systemd writes unquoted"
        if fault:
            raise InvalidRequestError(
                f"unit property {what} has {fault} in “{bounded(text, _SHOWN)}”: expected text that "
                "a unit file reproduces unchanged."
            )


def _texts(value: object, what: str) -> Iterator[tuple[str, str]]:
    """Yield every string in a call's body with the name of its property."""
    match value:
        case str():
            yield what, value
        case Variant(signature="aay", value=assignments):
            yield from _texts([bytes(each).decode("utf-8", "surrogateescape") for each in assignments], what)
        case Variant():
            yield from _texts(value.value, what)
        case [str() as name, Variant() as variant]:
            yield what, name
            yield from _texts(variant, name)
        case list() | tuple():
            for item in value:
                yield from _texts(item, what)
        case _:
            pass  # numbers, bit masks, addresses
