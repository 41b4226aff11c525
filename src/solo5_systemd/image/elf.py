"""The reader of an image's ELF file, by the rules of Solo5's ELF loader.

A tender reads program headers only, and of each PT_NOTE segment only the first note. Section names and further notes
are ignored here as well: this reader and the tender must get the same manifest from a file.
"""

import os
from collections.abc import Iterable, Sequence
from typing import BinaryIO

from solo5_systemd.base.elf_headers import (
    HEADER_SIZE,
    IDENT,
    PT_LOAD,
    PT_NOTE,
    SEGMENT_SIZE,
    Header,
    Segment,
    parse_segments,
)
from solo5_systemd.base.errors import ImageError
from solo5_systemd.image.manifest import GUEST_HEAP, MANIFEST_DESC_MAX, Manifest, decode_abi, decode_manifest

PAGE = 4096
LOWEST_ADDRESS = 0x100000
"""The lowest guest address of an image; the tender uses the memory below."""

MAX_SEGMENTS = 512
"""A Solo5 linker script makes about ten. The limit bounds the work for a hostile file; ELF allows 65535."""

_NOTE_SIZE = 20
_ET_EXEC, _EV_CURRENT = 2, 1
_MACHINES = {"x86_64": 62, "aarch64": 183}  # EM_X86_64, EM_AARCH64
_ABI_NOTE = 0x31494241
_MANIFEST_NOTE = 0x3154464D
_WRITE_EXECUTE = 0b011


def read_manifest(file: BinaryIO, size: int, *, machine: str | None = None) -> Manifest:
    """Read and check header, segments and both notes of a file that does not change meanwhile.

    Args:
        machine: the architecture as uname(2) names it; None: this host's.

    Raises:
        ImageError: no tender runs the image. The sentence has no subject ("its manifest …"), which the caller adds.
    """
    image = _Image(file, size)
    entry, segments = image.header(machine or os.uname().machine)
    if entry < LOWEST_ADDRESS:
        raise ImageError(f"its entry point is {entry:#x}: expected {LOWEST_ADDRESS:#x} or above.")
    target = decode_abi(image.note(segments, _ABI_NOTE, "ABI"))
    nics, disks = decode_manifest(image.note(segments, _MANIFEST_NOTE, "manifest"))
    loads = [it for it in segments if it.kind == PT_LOAD]
    # What is loaded is in the file; the tender does not load zero-filled segments, but the guest has them.
    loaded = _load_end((it for it in loads if it.file_size), size)
    zeroed = max((it.address + it.memory_size for it in loads), default=0)
    least = max(loaded, entry + 1, zeroed + GUEST_HEAP)
    return Manifest(target=target, nics=tuple(nics), disks=tuple(disks), min_memory=least)


class _Image:
    """An image file, with bounds checks on every read."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._size = size

    def header(self, machine: str) -> tuple[int, Sequence[Segment]]:
        """Return the entry point and the program headers."""
        raw = self._read(0, min(HEADER_SIZE, self._size), "header")
        if not raw.startswith(IDENT[:4]):
            raise ImageError("it is not an ELF file.")
        if not raw.startswith(IDENT):
            raise ImageError("it is not a 64-bit little-endian ELF file.")
        header = Header.parse(self._read(0, HEADER_SIZE, "header"))
        expected = {
            "e_type": _ET_EXEC,
            "e_machine": _MACHINES.get(machine),
            "e_version": _EV_CURRENT,
            "e_ehsize": HEADER_SIZE,
            "e_phentsize": SEGMENT_SIZE,
        }
        for field, value in expected.items():
            if getattr(header, field) != value:
                where = f" of an executable for {machine}" if field in ("e_type", "e_machine") else ""
                raise ImageError(f"its ELF header has {field} {getattr(header, field)}: expected {value}{where}.")
        if not 1 <= header.e_phnum <= MAX_SEGMENTS:
            raise ImageError(f"it has {header.e_phnum} program headers: expected 1 to {MAX_SEGMENTS}.")
        table = self._read(header.e_phoff, header.e_phnum * SEGMENT_SIZE, "program headers")
        return header.e_entry, parse_segments(table)

    def note(self, segments: Iterable[Segment], note_type: int, name: str) -> bytes:
        """Return the descriptor of the note that a tender finds: the first of its type among the first notes."""
        for segment in segments:
            # Too short for Solo5's: tenders skip it.
            if segment.kind != PT_NOTE or 12 <= segment.file_size < _NOTE_SIZE:
                continue
            if segment.file_size < 12:
                raise ImageError(f"a PT_NOTE segment of it holds {segment.file_size} bytes, less than a note's header.")
            raw = self._read(segment.offset, _NOTE_SIZE, "PT_NOTE segment")
            name_size, size, kind = (int.from_bytes(raw[at : at + 4], "little") for at in (0, 4, 8))
            if name_size != 6 or raw[12:18] != b"Solo5\0" or kind != note_type:  # each note has a segment of its own
                continue
            if size > MANIFEST_DESC_MAX or segment.file_size < _NOTE_SIZE + size:
                raise ImageError(f"its {name} note claims {size} bytes, more than its segment or Solo5 has.")
            return self._read(segment.offset + _NOTE_SIZE, size, f"{name} note")
        raise ImageError(f"it has no Solo5 {name} note: it is not a unikernel built by Solo5's toolchain.")

    def _read(self, offset: int, size: int, what: str) -> bytes:
        if offset + size > self._size:
            raise ImageError(
                f"it is damaged or truncated: its {what} would end at byte {offset + size}, the file at {self._size}."
            )
        self._file.seek(offset)
        content = self._file.read(size)
        if len(content) != size:
            raise ImageError(f"it changed while it was read: its {what} is no longer complete.")
        return content


def _load_end(segments: Iterable[Segment], size: int) -> int:
    """Return the end of the highest PT_LOAD segment, alignment included."""
    highest = LOWEST_ADDRESS
    for it in segments:
        where = f"its segment at {it.address:#x}"
        if it.align.bit_count() != 1:
            raise ImageError(f"{where} has alignment {it.align:#x}: expected a power of two.")
        start = it.address & -it.align
        end = -(-(it.address + it.memory_size) & -it.align)
        if start < highest:
            raise ImageError(f"{where} begins below {highest:#x}, where the one before it ends or guest memory begins.")
        if start % PAGE or end % PAGE:
            raise ImageError(f"{where} does not begin and end on pages of {PAGE} bytes.")
        if it.memory_size < it.file_size:
            raise ImageError(f"{where} is smaller in memory ({it.memory_size}) than in the file ({it.file_size}).")
        if it.offset + it.file_size > size:
            raise ImageError(f"{where} is damaged or truncated: it would end at byte {it.offset + it.file_size}.")
        if it.flags & _WRITE_EXECUTE == _WRITE_EXECUTE:
            raise ImageError(f"{where} is both writable and executable.")
        highest = end
    return highest
