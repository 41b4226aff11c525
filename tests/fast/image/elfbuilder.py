"""A builder of Solo5 images, valid or with one damaged field."""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

HVT, SPT, VIRTIO = 1, 2, 3
BLOCK, NET, RESERVED_FIRST = 1, 2, 1 << 30
ABI_NOTE, MANIFEST_NOTE = 0x31494241, 0x3154464D
PT_LOAD, PT_NOTE = 1, 4
PAGE = 4096
BASE = 0x100000


def abi(target: int = HVT, version: int = 2, reserved: tuple[int, int] = (0, 0)) -> bytes:
    return struct.pack("<4I", target, version, *reserved)


def entry(
    name: bytes = b"", kind: int = RESERVED_FIRST, settings: bytes = b"", handle: bytes = b"", attached: int = 0
) -> bytes:
    return struct.pack("<68sI16s8sB7x", name, kind, settings, handle, attached)


def manifest(entries: Sequence[bytes] | None = None, *, version: int = 1, count: int | None = None) -> bytes:
    entries = (entry(),) if entries is None else entries
    return struct.pack("<4xII", version, len(entries) if count is None else count) + b"".join(entries)


def devices(*named: tuple[bytes, int]) -> bytes:
    return manifest([entry(), *(entry(name, kind) for name, kind in named)])


def note(desc: bytes, kind: int, *, name: bytes = b"Solo5\0\0\0", descsz: int | None = None, namesz: int = 6) -> bytes:
    return struct.pack("<III8s", namesz, len(desc) if descsz is None else descsz, kind, name) + desc


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A program header with its content; offset and file size are derived unless given."""

    kind: int
    content: bytes = b""
    flags: int = 4
    address: int = 0
    memory: int | None = None
    align: int = PAGE
    offset: int | None = None
    size: int | None = None


def load(address: int = BASE, content: bytes = b"\xf4" * 16, **changes: int) -> Segment:
    return replace(Segment(kind=PT_LOAD, content=content, address=address, flags=5), **changes)  # type: ignore[arg-type]


def notes(*contents: bytes) -> tuple[Segment, ...]:
    return tuple(Segment(kind=PT_NOTE, content=content, align=4) for content in contents)


def usual_notes(target: int = HVT, *named: tuple[bytes, int]) -> tuple[Segment, ...]:
    return notes(note(abi(target), ABI_NOTE), note(devices(*named), MANIFEST_NOTE))


@dataclass(frozen=True, kw_only=True)
class Elf:
    """An ELF file; `header` has the header fields that differ from those of a valid image."""

    segments: Iterable[Segment] = field(default_factory=lambda: (load(), *usual_notes()))
    header: dict[str, int] = field(default_factory=dict)
    ident: bytes = b"\x7fELF\x02\x01\x01"

    def with_header(self, **fields: int) -> Self:
        return replace(self, header={**self.header, **fields})

    def build(self) -> bytes:
        segments = tuple(self.segments)
        offset = 64 + 56 * len(segments)
        table, content = b"", b""
        for it in segments:
            at = offset + len(content) if it.offset is None else it.offset
            size = len(it.content) if it.size is None else it.size
            memory = size if it.memory is None else it.memory
            table += struct.pack("<IIQQQQQQ", it.kind, it.flags, at, it.address, it.address, size, memory, it.align)
            content += it.content
        return self._header(len(segments)) + table + content

    def _header(self, segments: int) -> bytes:
        fields = {
            "type": 2, "machine": 62, "version": 1, "entry": BASE, "phoff": 64, "shoff": 0, "flags": 0,
            "ehsize": 64, "phentsize": 56, "phnum": segments, "shentsize": 64, "shnum": 0, "shstrndx": 0,
        } | self.header  # fmt: skip
        return struct.pack("<16sHHIQQQIHHHHHH", self.ident, *fields.values())
