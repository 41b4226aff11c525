"""A Solo5 image as bytes to change: its header, program headers, notes and manifest entries by their fields' names."""

import struct
from collections.abc import Mapping

HEADER_SIZE, SEGMENT_SIZE, NOTE_SIZE, ENTRY_SIZE = 64, 56, 20, 104
PT_LOAD, PT_NOTE = 1, 4
ABI_NOTE, MANIFEST_NOTE = 0x31494241, 0x3154464D

Field = tuple[int, str]
"""Where a field begins, and its format for struct(3)."""

HEADER: Mapping[str, Field] = {
    "e_type": (16, "H"), "e_machine": (18, "H"), "e_version": (20, "I"), "e_entry": (24, "Q"), "e_phoff": (32, "Q"),
    "e_shoff": (40, "Q"), "e_flags": (48, "I"), "e_ehsize": (52, "H"), "e_phentsize": (54, "H"), "e_phnum": (56, "H"),
    "e_shentsize": (58, "H"), "e_shnum": (60, "H"), "e_shstrndx": (62, "H"),
}  # fmt: skip
SEGMENT: Mapping[str, Field] = {
    "p_type": (0, "I"), "p_flags": (4, "I"), "p_offset": (8, "Q"), "p_vaddr": (16, "Q"), "p_paddr": (24, "Q"),
    "p_filesz": (32, "Q"), "p_memsz": (40, "Q"), "p_align": (48, "Q"),
}  # fmt: skip
NOTE: Mapping[str, Field] = {"n_namesz": (0, "I"), "n_descsz": (4, "I"), "n_type": (8, "I")}
ABI: Mapping[str, Field] = {
    name: (NOTE_SIZE + 4 * i, "I") for i, name in enumerate(("target", "version", "reserved0", "reserved1"))
}
MANIFEST: Mapping[str, Field] = {"version": (NOTE_SIZE + 4, "I"), "entries": (NOTE_SIZE + 8, "I")}
ENTRY: Mapping[str, Field] = {
    "type": (68, "I"), "capacity": (72, "Q"), "block_size": (80, "H"), "handle": (88, "Q"), "attached": (96, "B"),
}  # fmt: skip

_FIRST_ENTRY = NOTE_SIZE + 12


class ElfFile:
    """The bytes of an image, and those of its size that are a hole behind them."""

    def __init__(self, content: bytes) -> None:
        self.content = bytearray(content)
        self.size = len(content)

    def get(self, at: int, field: Field) -> int:
        """Return a number, zero where the content ends before it."""
        offset, code = field
        size = struct.calcsize(code)
        return int.from_bytes(self.content[at + offset : at + offset + size], "little")

    def put(self, at: int, field: Field, value: int) -> None:
        """Write a number, cut to its width, if its place is in the content."""
        offset, code = field
        size = struct.calcsize(code)
        self.write(at + offset, (value % (1 << 8 * size)).to_bytes(size, "little"))

    def write(self, at: int, data: bytes) -> None:
        """Write bytes over those that are there."""
        if 0 <= at <= len(self.content) - len(data):
            self.content[at : at + len(data)] = data

    def append(self, data: bytes, align: int = 8) -> int:
        """Write bytes behind the content; return their offset."""
        self.content += bytes(-len(self.content) % align)
        at = len(self.content)
        self.content += data
        self.size = max(self.size, len(self.content))
        return at

    def cut(self, size: int) -> None:
        """End the file there."""
        del self.content[size:]
        self.size = size

    def segments(self) -> list[int]:
        """Return the offsets of the program headers."""
        table, count = self.get(0, HEADER["e_phoff"]), self.get(0, HEADER["e_phnum"])
        return [table + SEGMENT_SIZE * i for i in range(min(count, 1 << 10))]

    def of_type(self, kind: int) -> list[int]:
        """Return the offsets of the program headers of one type."""
        return [at for at in self.segments() if self.get(at, SEGMENT["p_type"]) == kind]

    def notes(self) -> list[int]:
        """Return the offsets of the first note of each PT_NOTE segment."""
        return [self.get(at, SEGMENT["p_offset"]) for at in self.of_type(PT_NOTE)]

    def note(self, kind: int) -> int:
        """Return the offset of the note of one type; that of the file's header where there is none."""
        return next((at for at in self.notes() if self.get(at, NOTE["n_type"]) == kind), 0)

    def entries(self) -> list[int]:
        """Return the offsets of the manifest's entries."""
        note = self.note(MANIFEST_NOTE)
        count = min(self.get(note, MANIFEST["entries"]), 64)
        return [note + _FIRST_ENTRY + ENTRY_SIZE * i for i in range(count)]

    def table(self) -> list[bytes]:
        """Return the program headers as bytes."""
        return [bytes(self.content[at : at + SEGMENT_SIZE]) for at in self.segments()]

    def move_table(self, segments: list[bytes]) -> None:
        """Write another table of program headers behind the content."""
        self.put(0, HEADER["e_phoff"], self.append(b"".join(segments)))
        self.put(0, HEADER["e_phnum"], len(segments))


def segment(kind: int, offset: int, size: int, *, address: int = 0, flags: int = 4, align: int = 8) -> bytes:
    """Return a program header."""
    return struct.pack("<IIQQQQQQ", kind, flags, offset, address, address, size, size, align)


def note(kind: int, desc: bytes, *, name: bytes = b"Solo5\0\0\0", name_size: int = 6) -> bytes:
    """Return a note with its header."""
    return struct.pack("<III8s", name_size, len(desc), kind, name) + desc
