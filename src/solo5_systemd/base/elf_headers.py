"""The headers of 64-bit little-endian ELF files, with the names of elf(5); a pure module.

Two structures of fixed size. A library that has them takes more than half as long to import as asyncio, at each start.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple, Self

IDENT = b"\x7fELF\x02\x01"
"""The first bytes of such a file."""

PT_LOAD, PT_DYNAMIC, PT_INTERP, PT_NOTE = 1, 2, 3, 4

_HEADER = struct.Struct("<16x2HI2Q12x3H6x")
_SEGMENT = struct.Struct("<2I2Q8x3Q")
HEADER_SIZE, SEGMENT_SIZE = _HEADER.size, _SEGMENT.size


class Header(NamedTuple):
    """What is read of Elf64_Ehdr."""

    e_type: int
    e_machine: int
    e_version: int
    e_entry: int
    e_phoff: int
    e_ehsize: int
    e_phentsize: int
    e_phnum: int

    @classmethod
    def parse(cls, raw: bytes) -> Self:
        """Parse the first `HEADER_SIZE` bytes of a file.

        Raises:
            struct.error: these are another number of bytes.
        """
        return cls(*_HEADER.unpack(raw))


class Segment(NamedTuple):
    """What is read of Elf64_Phdr."""

    kind: int
    flags: int
    offset: int
    address: int
    file_size: int
    memory_size: int
    align: int


def parse_segments(table: bytes) -> Sequence[Segment]:
    """Parse program headers: `SEGMENT_SIZE` bytes each."""
    return [Segment(*each) for each in _SEGMENT.iter_unpack(table)]
