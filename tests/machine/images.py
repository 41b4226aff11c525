"""Images that are larger than they need to be."""

import os
import struct
from pathlib import Path

_HEADERS = struct.Struct("<Q")  # e_shoff
_COUNTS = struct.Struct("<HHH")  # e_shentsize, e_shnum, e_shstrndx
_SECTION = struct.Struct("<IIQQQQIIQQ")


def padded(source: Path, target: Path, size: int, *, filled: bool) -> Path:
    """A guest whose ELF headers account for so many more bytes, which a tender never reads; holes, or random bytes."""
    content = bytearray(source.read_bytes())
    start = len(content) + _SECTION.size
    _HEADERS.pack_into(content, 40, len(content))
    _COUNTS.pack_into(content, 58, _SECTION.size, 1, 0)
    content += _SECTION.pack(0, 1, 0, 0, start, size, 0, 0, 1, 0)
    target.write_bytes(content + (os.urandom(size) if filled else b""))
    os.truncate(target, start + size)
    return target
