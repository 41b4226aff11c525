"""Parser of the Journal Export Format (systemd.io/JOURNAL_EXPORT_FORMATS).

An entry is a sequence of fields, ended by an empty line. A field is `NAME=value` and a newline; or, for a binary value,
`NAME`, a newline, the length as a little-endian 64-bit integer, that many bytes, and a newline.
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from solo5_systemd.unit.log_fields import STDERR_PRIORITY

FIELD_LIMIT = 64 << 20
"""Bytes of one field; journald's own limit is far below."""

_MAX_DIGITS = 20
"""Decimal digits of a 64-bit number."""


class Stream(StrEnum):
    """The output streams of a unit: stdout has the guest's console, stderr the tender's messages."""

    STDOUT = "stdout"
    STDERR = "stderr"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One journal entry of a console.

    Attributes:
        cursor: __CURSOR=.
        realtime: the time when journald received it, in µs since the epoch.
        message: MESSAGE=.
        stream: derived from PRIORITY=.
        fields: all fields.
    """

    cursor: str
    realtime: int
    message: bytes
    stream: Stream
    fields: Mapping[str, bytes]


class ExportError(Exception):
    """The input is not in the Journal Export Format."""


class ExportParser:
    """An incremental parser: `feed` it with input, and iterate over the complete entries."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._fields: dict[str, bytes] = {}

    def feed(self, data: bytes) -> Iterator[Entry]:
        """Yield the entries that are completed by this input.

        Raises:
            ExportError: the input is not in the Journal Export Format.
        """
        self._buffer += data
        while (line_end := self._buffer.find(b"\n")) >= 0:
            line = bytes(self._buffer[:line_end])
            if not line:
                del self._buffer[:1]
                if self._fields:
                    fields, self._fields = self._fields, {}
                    yield _entry(fields)
            elif b"=" in line:
                del self._buffer[: line_end + 1]
                name, _, value = line.partition(b"=")
                self._fields[name.decode("ascii", "replace")] = value
            elif not self._parse_binary(line, line_end):
                return
        if len(self._buffer) > FIELD_LIMIT:
            raise ExportError(f"a field of more than {FIELD_LIMIT} bytes")

    def _parse_binary(self, name: bytes, line_end: int) -> bool:
        """Parse a binary field; return False if it is incomplete."""
        start = line_end + 1 + 8
        if len(self._buffer) < start:
            return False
        (length,) = struct.unpack_from("<Q", self._buffer, line_end + 1)
        if length > FIELD_LIMIT:
            raise ExportError(f"a field of {length} bytes")
        if len(self._buffer) < start + length + 1:
            return False
        if self._buffer[start + length] != 0x0A:
            raise ExportError("a binary field does not end with a newline")
        self._fields[name.decode("ascii", "replace")] = bytes(self._buffer[start : start + length])
        del self._buffer[: start + length + 1]
        return True


def _entry(fields: dict[str, bytes]) -> Entry:
    return Entry(
        cursor=fields.get("__CURSOR", b"").decode("ascii", "replace"),
        realtime=_number(fields.get("__REALTIME_TIMESTAMP", b"0")),
        message=fields.get("MESSAGE", b""),
        stream=Stream.STDERR if fields.get("PRIORITY") == b"%d" % STDERR_PRIORITY else Stream.STDOUT,
        fields=fields,
    )


def _number(text: bytes) -> int:
    if not text.isdigit() or len(text) > _MAX_DIGITS:
        raise ExportError(f"an invalid timestamp {text[:40]!r}")
    return int(text)
