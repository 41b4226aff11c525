"""Mutations of a Solo5 image: each changes what a kind of damage or malice would change, by a source of chance."""

import struct
from collections.abc import Callable, Mapping
from random import Random

from tests.hostile.elffile import (
    ABI,
    ABI_NOTE,
    ENTRY,
    HEADER,
    HEADER_SIZE,
    MANIFEST,
    MANIFEST_NOTE,
    NOTE,
    NOTE_SIZE,
    PT_LOAD,
    PT_NOTE,
    SEGMENT,
    SEGMENT_SIZE,
    ElfFile,
    Field,
    note,
    segment,
)

Mutation = Callable[[Random, ElfFile], None]

NAMES = (
    b"", b"\0", b"a b", b"a\nb", b"a\rb", b"\x1b[31mred\x1b[0m", b"\xff\xfe", "ü\u2028".encode(), b"../../etc",
    b'","type":"NET_BASIC"},{"name":"x', b"%s%n", b"$(reboot)", b"--net:x=y", b"service=tap0", b"x" * 67, b"x" * 68,
    b"\x7f", b"a:b", b"a,b", b"\0hidden", b"service0\0tail", b"-", b".", b"0",
)  # fmt: skip
"""Names of devices: escapes, structure of other languages, lengths about the limit."""

MACHINES = (0, 3, 8, 20, 21, 22, 40, 43, 50, 62, 183, 243, 247, 258, 0xFFFF)
"""Machines of ELF files: Intel 386, MIPS, PowerPC, s390, ARM, SPARC, IA-64, x86-64, AArch64, RISC-V, BPF, LoongArch."""

STARTS = (
    b"", b"\x7f", b"\x7fELF", b"#!/bin/sh\nexit 0\n", b"\x1f\x8b\x08\0", b"MZ\x90\0", b"\0asm\1\0\0\0", b"!<arch>\n",
    b"\xca\xfe\xba\xbe", b"PK\3\4", b"{}", b"\xff" * 64, bytes(64), bytes(4096),
)  # fmt: skip


def number(rng: Random, field: Field, now: int) -> int:
    """Return a number for a field: a limit, a neighbour of what it is, what makes sums wrap, or any."""
    bits = 8 * struct.calcsize(field[1])
    top = 1 << bits
    return rng.choice(
        (
            0, 1, 2, 3, 7, 11, 12, 19, 20, 64, 512, 513, 4095, 4096, 0x100000 - 1, 0x100000, top - 1, top - 2,
            top - 4096, top >> 1, (top >> 1) - 1, now + 1, now - 1, now * 2, now ^ (1 << rng.randrange(bits)),
            top - now, 1 << rng.randrange(bits), rng.randrange(top), rng.randrange(1 << min(bits, 16)),
        )
    )  # fmt: skip


def _change(rng: Random, elf: ElfFile, at: int, fields: Mapping[str, Field]) -> None:
    field = rng.choice(list(fields.values()))
    elf.put(at, field, number(rng, field, elf.get(at, field)))


def header(rng: Random, elf: ElfFile) -> None:
    _change(rng, elf, 0, HEADER)


def ident(rng: Random, elf: ElfFile) -> None:
    elf.write(rng.randrange(16), bytes([rng.choice((0, 1, 2, 3, 255, rng.randrange(256)))]))


def machine(rng: Random, elf: ElfFile) -> None:
    """Make it a file of another machine, of 32 bits or of the other byte order."""
    elf.put(0, HEADER["e_machine"], rng.choice(MACHINES))
    elf.write(4, bytes([rng.choice((1, 2)), rng.choice((1, 2))]))
    elf.put(0, HEADER["e_type"], rng.choice((0, 1, 2, 3, 4, 0xFE00)))


def segment_field(rng: Random, elf: ElfFile) -> None:
    _change(rng, elf, rng.choice(elf.segments() or [0]), SEGMENT)


def load_field(rng: Random, elf: ElfFile) -> None:
    _change(rng, elf, rng.choice(elf.of_type(PT_LOAD) or [0]), SEGMENT)


def wraps(rng: Random, elf: ElfFile) -> None:
    """Have address and size, or offset and size, add up to little more or less than 2^64."""
    at = rng.choice(elf.of_type(PT_LOAD) or [0])
    base, size = rng.choice((("p_vaddr", "p_memsz"), ("p_offset", "p_filesz"), ("p_vaddr", "p_filesz")))
    if rng.random() < 0.5:
        elf.put(at, SEGMENT[base], (1 << 64) - rng.choice((1, 4096, 1 << 20, elf.get(at, SEGMENT[size]))))
    else:
        elf.put(at, SEGMENT[size], (1 << 64) - elf.get(at, SEGMENT[base]) + rng.randrange(-4096, 4096))
    if rng.random() < 0.3:
        elf.put(at, SEGMENT["p_align"], 1 << rng.randrange(64))


def overlaps(rng: Random, elf: ElfFile) -> None:
    loads = elf.of_type(PT_LOAD) or [0]
    one, other = rng.choice(loads), rng.choice(loads)
    elf.put(one, SEGMENT["p_vaddr"], elf.get(other, SEGMENT["p_vaddr"]) + rng.choice((0, 1, 0x800, 0x1000, -0x1000)))


def huge(rng: Random, elf: ElfFile) -> None:
    """Have a segment claim gigabytes to exabytes of memory, with or without bytes in the file."""
    at = rng.choice(elf.segments() or [0])
    elf.put(at, SEGMENT["p_memsz"], 1 << rng.randrange(28, 64))
    if rng.random() < 0.5:
        elf.put(at, SEGMENT["p_filesz"], 0)


def many(rng: Random, elf: ElfFile) -> None:
    """Have as many program headers as the parser reads, or more."""
    table = elf.table() or [bytes(SEGMENT_SIZE)]
    kinds = rng.choice((table, [segment(PT_NOTE, elf.note(ABI_NOTE), 20)], [segment(PT_LOAD, 0, 0)]))
    count = rng.choice((1, 2, 511, 512, 513, 4000, 65535))
    elf.move_table([*table, *(rng.choice(kinds) for _ in range(count))][: max(count, len(table))])


def shuffled(rng: Random, elf: ElfFile) -> None:
    table = elf.table() or [bytes(SEGMENT_SIZE)]
    rng.shuffle(table)
    elf.move_table(table + rng.choices(table, k=rng.randrange(3)))


def note_header(rng: Random, elf: ElfFile) -> None:
    _change(rng, elf, rng.choice(elf.notes() or [0]), NOTE)


def note_name(rng: Random, elf: ElfFile) -> None:
    names = (b"solo5\0\0\0", b"Solo5\0xy", b"Solo50\0\0", b"OpenBSD\0", b"GNU\0Solo", bytes(8), rng.randbytes(8))
    name = rng.choice(names)
    elf.write(rng.choice(elf.notes() or [0]) + 12, name)


def note_again(rng: Random, elf: ElfFile) -> None:
    """Add a note that says something else than the one that is there, before or behind it."""
    kind = rng.choice((ABI_NOTE, MANIFEST_NOTE))
    desc = bytearray(_descriptor(elf, kind))
    for _ in range(rng.randrange(4)):
        if desc:
            desc[rng.randrange(len(desc))] = rng.randrange(256)
    content = note(kind, bytes(desc), name_size=rng.choice((6, 6, 6, 5, 8)))
    if rng.random() < 0.3:  # a second note of one segment, which no tender sees
        content = note(1, bytes(4), name=b"OpenBSD\0", name_size=8) + content
    added = segment(PT_NOTE, elf.append(content), len(content) + rng.choice((0, 0, 0, -1, 1, -len(content))) & 0xFFFF)
    table = elf.table()
    table.insert(rng.randrange(len(table) + 1), added)
    elf.move_table(table)


def abi(rng: Random, elf: ElfFile) -> None:
    _change(rng, elf, elf.note(ABI_NOTE), ABI)


def manifest_header(rng: Random, elf: ElfFile) -> None:
    _change(rng, elf, elf.note(MANIFEST_NOTE), MANIFEST)


def entry_name(rng: Random, elf: ElfFile) -> None:
    name = rng.choice((*NAMES, rng.randbytes(rng.randrange(69))))
    elf.write(rng.choice(elf.entries() or [0]), name.ljust(68, b"\0") if rng.random() < 0.8 else name)


def entry_field(rng: Random, elf: ElfFile) -> None:
    _change(rng, elf, rng.choice(elf.entries() or [0]), ENTRY)


def devices(rng: Random, elf: ElfFile) -> None:
    """Declare another number of devices, sound or not, in a manifest that has room for them."""
    count = rng.choice((0, 1, 2, 62, 63, 64, 200))
    kind = rng.choice((1, 2, 2, 2, 3, 1 << 30, rng.randrange(1 << 32)))
    names = [rng.choice(NAMES) if rng.random() < 0.01 else b"d%d" % i for i in range(count)]
    if names and rng.random() < 0.2:
        names[-1] = names[0]
    entries = [struct.pack("<68sI32x", b"", 1 << 30), *(struct.pack("<68sI32x", name[:68], kind) for name in names)]
    claimed = rng.choice((len(entries), len(entries), len(entries) + 1, len(entries) - 1))
    content = note(MANIFEST_NOTE, struct.pack("<4xII", 1, claimed) + b"".join(entries))
    _replace_note(elf, MANIFEST_NOTE, content)


def truncated(rng: Random, elf: ElfFile) -> None:
    """End the file anywhere, or where a structure begins or ends."""
    borders = [0, 1, 4, 16, HEADER_SIZE, *elf.segments(), *elf.notes(), *elf.entries(), len(elf.content)]
    end = rng.choice((rng.choice(borders) + rng.choice((-1, 0, 1, NOTE_SIZE)), rng.randrange(len(elf.content) + 1)))
    elf.cut(max(0, min(end, len(elf.content))))


def giant(rng: Random, elf: ElfFile) -> None:
    """Have a hole behind the content, up to the largest file that Linux knows, and something that leads there."""
    elf.size = max(elf.size, rng.choice((1 << 30, (4 << 30) - 1, 4 << 30, 5 << 30, 1 << 40, (1 << 63) - 1)))
    place = rng.randrange(elf.size)
    what = rng.randrange(4)
    if what == 0:
        elf.put(rng.choice(elf.segments() or [0]), SEGMENT["p_offset"], place)
    elif what == 1:
        elf.put(rng.choice(elf.of_type(PT_LOAD) or [0]), SEGMENT["p_filesz"], elf.size)
    elif what == 2:
        elf.put(0, HEADER["e_phoff"], place)


def flipped(rng: Random, elf: ElfFile) -> None:
    """Flip bits, most of them where the structures are."""
    places = [*range(min(HEADER_SIZE, len(elf.content)))]
    for at in (*elf.segments(), *elf.notes()):
        places += range(at, min(at + SEGMENT_SIZE, len(elf.content)))
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        at = rng.choice(places) if places and rng.random() < 0.8 else rng.randrange(len(elf.content) or 1)
        if at < len(elf.content):
            elf.content[at] ^= 1 << rng.randrange(8)


def smeared(rng: Random, elf: ElfFile) -> None:
    """Write one byte, or a piece of the file, over another piece of it."""
    at, size = rng.randrange(len(elf.content) or 1), rng.choice((1, 4, 8, 56, 104, 512))
    start = rng.randrange(len(elf.content) or 1)
    piece = bytes(elf.content[start : start + size])
    elf.write(at, rng.choice((b"\xff" * size, bytes(size), rng.randbytes(size), piece)))


def stranger(rng: Random, elf: ElfFile) -> None:
    """Be no Solo5 image at all, by its first bytes or wholly."""
    start = rng.choice(STARTS)
    if rng.random() < 0.5:
        elf.write(0, start)
    else:
        elf.cut(0)
        elf.append(start + rng.randbytes(rng.choice((0, 0, 1, 63, 64, 5000))), align=1)


def harmless(rng: Random, elf: ElfFile) -> None:
    """Change what no tender reads: physical addresses, section headers, code, bytes behind the end."""
    what = rng.randrange(4)
    if what == 0:
        elf.put(rng.choice(elf.segments() or [0]), SEGMENT["p_paddr"], rng.randrange(1 << 64))
    elif what == 1:
        elf.put(0, HEADER[rng.choice(("e_shoff", "e_shnum", "e_shstrndx", "e_shentsize"))], rng.randrange(1 << 16))
    elif what == 2:
        elf.write(0x1100 + rng.randrange(0x100), rng.randbytes(16))
    else:
        elf.append(rng.randbytes(rng.randrange(1 << 14)), align=1)


def _descriptor(elf: ElfFile, kind: int) -> bytes:
    at = elf.note(kind)
    size = min(elf.get(at, NOTE["n_descsz"]), 6668)
    return bytes(elf.content[at + NOTE_SIZE : at + NOTE_SIZE + size])


def _replace_note(elf: ElfFile, kind: int, content: bytes) -> None:
    at = elf.append(content)
    for place in elf.of_type(PT_NOTE):
        if elf.get(elf.get(place, SEGMENT["p_offset"]), NOTE["n_type"]) == kind:
            elf.write(place, segment(PT_NOTE, at, len(content)))


MUTATIONS: tuple[Mutation, ...] = (
    header, ident, machine, segment_field, load_field, wraps, overlaps, huge, many, shuffled, note_header, note_name,
    note_again, abi, manifest_header, entry_name, entry_field, devices, truncated, giant, flipped, smeared, stranger,
    harmless,
)  # fmt: skip
