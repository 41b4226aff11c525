"""The conversation between the host and the machine: frames on one byte stream.

One stream carries everything (a Unix socket into a container, a virtio serial port into a virtual machine),
so that output, its end and the exit status arrive in the order in which they happened.
This module is used on both sides: it is copied into the machine beside the runner.
"""

import json
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

CHUNK = 64 * 1024
_HEADER = struct.Struct(">cI")


class Kind(Enum):
    """What a frame carries; the first group travels to the machine, the second comes from it."""

    ARCHIVE = b"A"  # a piece of a tar stream to unpack at /
    ARCHIVE_END = b"a"
    FETCH = b"F"  # JSON: a path wanted as a tar stream
    RUN = b"R"  # JSON: the command
    INPUT = b"I"  # bytes for the command's terminal
    WINDOW = b"W"  # JSON: rows and columns of the terminal

    READY = b"r"  # JSON: state of the system after boot
    STDOUT = b"o"
    STDERR = b"e"
    EXIT = b"x"  # JSON: exit status, as a shell would give it
    PIECE = b"p"  # a piece of the tar stream asked for
    PIECE_END = b"P"  # JSON: null, or why the stream is not whole


@dataclass(frozen=True, slots=True)
class Frame:
    kind: Kind
    data: bytes = b""

    def json(self) -> Any:
        return json.loads(self.data)


class Channel:
    """Frames over a pair of byte functions; sending is safe from several threads."""

    def __init__(self, read: Callable[[int], bytes], write: Callable[[bytes], int]) -> None:
        self._read = read
        self._write = write
        self._sending = threading.Lock()

    def send(self, kind: Kind, data: bytes = b"") -> None:
        pending = memoryview(_HEADER.pack(kind.value, len(data)) + data)
        with self._sending:
            while pending:
                pending = pending[self._write(bytes(pending[:CHUNK])) :]

    def send_json(self, kind: Kind, value: Any) -> None:
        self.send(kind, json.dumps(value).encode())

    def receive(self) -> Frame:
        """Return the next frame.

        Raises:
            EOFError: the other side is gone.
        """
        kind, length = _HEADER.unpack(self._exactly(_HEADER.size))
        return Frame(Kind(kind), self._exactly(length))

    def _exactly(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            part = self._read(min(CHUNK, size - len(parts)))
            if not part:
                raise EOFError("the channel was closed")
            parts += part
        return bytes(parts)
