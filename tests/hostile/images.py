"""The corpus of hostile images: the same for a seed, each image by its number, made of the real guests of the tests."""

import errno
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from io import SEEK_SET
from pathlib import Path
from random import Random

from tests.hostile.elffile import ElfFile
from tests.hostile.mutations import MUTATIONS
from tests.support.bootlib import layer

GUESTS = Path(__file__).resolve().parents[1] / "support/guests"
COMPOUND = 0.3
"""The share of images with several mutations, up to four."""


@dataclass(frozen=True, kw_only=True)
class Hostile:
    """One image of a corpus, made of a guest; what the file of `size` bytes has behind `content` is a hole."""

    seed: int
    number: int
    guest: str
    mutations: tuple[str, ...]
    content: bytes
    size: int

    def __str__(self) -> str:
        return f"image {self.number} of seed {self.seed} ({self.guest}: {', '.join(self.mutations)})"

    def file(self) -> "CountingFile":
        """Return a file in memory."""
        return CountingFile(self.content, self.size)

    def write(self, path: Path) -> bool:
        """Write a file with its hole; False where no file of this file system can be so long."""
        path.write_bytes(self.content)
        try:
            os.truncate(path, self.size)
        except OSError as error:
            if error.errno in (errno.EFBIG, errno.EINVAL):
                return False
            raise
        return True


class CountingFile:
    """A file in memory with a hole at its end, that counts what is read of it."""

    def __init__(self, content: bytes, size: int) -> None:
        self._content = content
        self._size = size
        self._at = 0
        self.reads = 0
        self.bytes = 0

    def seek(self, offset: int, /) -> int:
        """Go to an offset, as a file does: one that Linux cannot have is an error."""
        if not SEEK_SET <= offset < 1 << 63:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self._at = offset
        return offset

    def read(self, size: int, /) -> bytes:
        """Return so many bytes, fewer at the end."""
        size = max(0, min(size, self._size - self._at))
        content = self._content[self._at : self._at + size]
        self.reads += 1
        self.bytes += size
        self._at += size
        return content + bytes(size - len(content))


@cache
def guests() -> Mapping[str, bytes]:
    """Return the images of all guests, built where that has not been done."""
    built = layer.made(GUESTS)
    return {path.name: path.read_bytes() for path in sorted(built.iterdir()) if path.suffix in (".hvt", ".spt")}


def hostile(seed: int, number: int, seeds: Mapping[str, bytes]) -> Hostile:
    """Return one image of a seed's corpus."""
    rng = Random(f"{seed}/{number}")
    guest = rng.choice(sorted(seeds))
    elf = ElfFile(seeds[guest])
    # Each mutation in turn, so that a sample has all of them.
    chosen = [MUTATIONS[number % len(MUTATIONS)]]
    if rng.random() < COMPOUND:
        chosen += rng.choices(MUTATIONS, k=rng.randrange(1, 4))
    for mutation in chosen:
        mutation(rng, elf)
    return Hostile(
        seed=seed,
        number=number,
        guest=guest,
        mutations=tuple(each.__name__ for each in chosen),
        content=bytes(elf.content),
        size=elf.size,
    )


def corpus(seed: int, count: int) -> Iterator[Hostile]:
    """Yield the first images of a seed's corpus."""
    seeds = guests()
    return (hostile(seed, number, seeds) for number in range(count))
