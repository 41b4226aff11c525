"""Images that are larger than they need to be."""

import os
from pathlib import Path


def padded(source: Path, target: Path, size: int, *, filled: bool) -> Path:
    """A guest with so many more bytes at its end, which a tender never reads; holes, or random bytes."""
    content = source.read_bytes()
    target.write_bytes(content + (os.urandom(size) if filled else b""))
    os.truncate(target, len(content) + size)
    return target
