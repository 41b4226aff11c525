"""The journal's export format: bytes in, entries out (systemd.io/JOURNAL_EXPORT_FORMATS).

An entry is a run of fields ended by an empty line. A field is `NAME=value` and a newline, or, where the value is not
plain text, `NAME`, a newline, its length as a little-endian 64-bit number, that many bytes, and a newline.
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from solo5_systemd.unit.log_fields import STDERR_PRIORITY

LIMIT = 64 << 20
"""Bytes that one field may have; more is not a journal's, whose own limit is far below."""

_DIGITS = 20
"""Of a number of 64 bits."""


class Stream(StrEnum):
    """Which of a tender's two outputs: the guest's console, or the tender's own words."""

    STDOUT = "stdout"
    STDERR = "stderr"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line. `realtime`: microseconds since the epoch, when the journal received it."""

    cursor: str
    realtime: int
    message: bytes
    stream: Stream
    fields: Mapping[str, bytes]


class ExportError(Exception):
    """The bytes are not of the export format."""


class Reader:
    """An incremental reader: `feed` it as bytes come, iterate over what is complete."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._fields: dict[str, bytes] = {}

    def feed(self, data: bytes) -> Iterator[Entry]:
        """The entries that these bytes complete.

        Raises:
            ExportError: the bytes are not of the export format.
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
            elif not self._binary(line, line_end):
                return
        if len(self._buffer) > LIMIT:
            raise ExportError(f"a field of more than {LIMIT} bytes")

    def _binary(self, name: bytes, line_end: int) -> bool:
        """Take a binary field; False where it has not come whole yet."""
        start = line_end + 1 + 8
        if len(self._buffer) < start:
            return False
        (length,) = struct.unpack_from("<Q", self._buffer, line_end + 1)
        if length > LIMIT:
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
    if not text.isdigit() or len(text) > _DIGITS:
        raise ExportError(f"the timestamp {text[:40]!r}")
    return int(text)
