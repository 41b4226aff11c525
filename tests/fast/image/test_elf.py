import os
import re
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO

import pytest
from tests.fast.image import elfbuilder as elf

from solo5_systemd.base.errors import ImageError
from solo5_systemd.base.names import Target
from solo5_systemd.image.elf import read_manifest
from solo5_systemd.image.manifest import GUEST_HEAP, Manifest

SOUND = elf.Elf()


def read(content: bytes, size: int | None = None) -> Manifest:
    return read_manifest(BytesIO(content), len(content) if size is None else size, machine="x86_64")


def refusal(content: bytes) -> str:
    with pytest.raises(ImageError) as caught:
        read(content)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def with_notes(*notes: bytes) -> bytes:
    return elf.Elf(segments=(elf.load(), *elf.notes(*notes))).build()


def with_loads(*loads: elf.Segment) -> bytes:
    return elf.Elf(segments=(*loads, *elf.usual_notes())).build()


def test_a_sound_image_tells_its_tender_devices_and_size() -> None:
    segments = (
        elf.load(0x100000, b"\xf4" * 5000),
        elf.load(0x102000, b"data", flags=6),
        elf.load(0x103000, b"", flags=6, memory=0x203CB0),
        elf.load(0, b"", memory=0),
        *elf.usual_notes(elf.SPT, (b"storage", elf.BLOCK), (b"service", elf.NET)),
    )
    found = read(elf.Elf(segments=segments, header={"entry": 0x100020}).build())
    assert found.target is Target.SPT
    assert (found.nics, found.disks) == (("service",), ("storage",))
    assert found.min_memory == 0x103000 + 0x203CB0 + GUEST_HEAP


@pytest.mark.parametrize(
    "load, entry, least",
    [
        (elf.load(0x200000, align=0x200000), elf.BASE, 0x400000),
        (elf.load(), 0x900000, 0x900001),
        (elf.load(memory=0x200000), elf.BASE, 0x300000 + GUEST_HEAP),
    ],
)
def test_the_least_memory_covers_code_entry_and_heap(load: elf.Segment, entry: int, least: int) -> None:
    assert read(elf.Elf(segments=(load, *elf.usual_notes()), header={"entry": entry}).build()).min_memory == least


def test_the_machine_is_this_one_where_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "uname", lambda: type("Uname", (), {"machine": "aarch64"}))
    content = SOUND.with_header(machine=183).build()
    assert read_manifest(BytesIO(content), len(content)).target is Target.HVT


@pytest.mark.parametrize(
    "content, words",
    [
        (b"", "not an ELF file"),
        (b"#!/bin/sh\nexec true\n", "not an ELF file"),
        (b"\x7fELF", "not a 64-bit little-endian"),
        (replace(SOUND, ident=b"\x7fELF\x01\x01\x01").build(), "not a 64-bit little-endian"),
        (replace(SOUND, ident=b"\x7fELF\x02\x02\x01").build(), "not a 64-bit little-endian"),
        (SOUND.build()[:63], "its header would end at byte 64, the file at 63"),
        (SOUND.with_header(type=3).build(), "e_type 3: expected 2 of an executable for x86_64"),
        (SOUND.with_header(type=0x1234).build(), "e_type 4660"),
        (SOUND.with_header(machine=183).build(), "e_machine 183: expected 62 of an executable for x86_64"),
        (SOUND.with_header(machine=0x1234).build(), "e_machine 4660"),
        (SOUND.with_header(version=2).build(), "e_version 2: expected 1."),
        (SOUND.with_header(ehsize=52).build(), "e_ehsize 52"),
        (SOUND.with_header(phentsize=32).build(), "e_phentsize 32"),
        (SOUND.with_header(phnum=0).build(), "0 program headers: expected 1 to 512"),
        (SOUND.with_header(phnum=65535).build(), "65535 program headers"),
        (SOUND.with_header(phnum=512).build(), "its program headers would end"),
        (SOUND.with_header(phoff=1 << 63).build(), "its program headers would end"),
        (SOUND.with_header(phoff=(1 << 64) - 1).build(), "its program headers would end"),
        (SOUND.with_header(entry=0xFFFFF).build(), "entry point is 0xfffff"),
    ],
)
def test_a_header_that_a_tender_refuses_is_refused(content: bytes, words: str) -> None:
    assert words in refusal(content)


ABI = elf.note(elf.abi(), elf.ABI_NOTE)
MANIFEST = elf.note(elf.manifest(), elf.MANIFEST_NOTE)
FOREIGN = elf.note(b"\0" * 4, 1, name=b"OpenBSD\0", namesz=8)


def test_notes_are_searched_in_the_order_of_the_segments() -> None:
    other = elf.note(elf.abi(elf.SPT), elf.ABI_NOTE)
    padded = elf.note(elf.abi(), elf.ABI_NOTE, name=b"Solo5\0xy")
    assert read(with_notes(FOREIGN, MANIFEST, ABI, other)).target is Target.HVT
    assert read(with_notes(other, MANIFEST, ABI)).target is Target.SPT
    assert read(with_notes(padded, MANIFEST)).target is Target.HVT, "padding is no part of the owner's name"
    assert read(with_notes(FOREIGN[:12], ABI, MANIFEST)).target is Target.HVT, "one that is too small"


@pytest.mark.parametrize(
    "notes, words",
    [
        ([], "no Solo5 ABI note"),
        ([MANIFEST], "no Solo5 ABI note"),
        ([ABI], "no Solo5 manifest note"),
        ([FOREIGN + ABI, MANIFEST], "no Solo5 ABI note"),
        ([MANIFEST + ABI], "no Solo5 ABI note"),
        ([elf.note(elf.abi(), elf.ABI_NOTE, namesz=8), MANIFEST], "no Solo5 ABI note"),
        ([elf.note(elf.abi(), elf.ABI_NOTE, name=b"solo5\0\0\0"), MANIFEST], "no Solo5 ABI note"),
        ([b"", ABI, MANIFEST], "PT_NOTE segment of it holds 0 bytes"),
        ([b"\0" * 11, ABI, MANIFEST], "PT_NOTE segment of it holds 11 bytes"),
        ([elf.note(b"", elf.ABI_NOTE), MANIFEST], "ABI note holds 0 bytes"),
        ([elf.note(elf.abi(), elf.ABI_NOTE, descsz=17), MANIFEST], "ABI note claims 17 bytes"),
        ([elf.note(elf.abi(), elf.ABI_NOTE, descsz=0xFFFFFFFF), MANIFEST], "ABI note claims 4294967295 bytes"),
        ([elf.note(elf.abi(elf.VIRTIO, 1), elf.ABI_NOTE), MANIFEST], "target virtio"),
        ([ABI, elf.note(b"\0" * 6669, elf.MANIFEST_NOTE)], "manifest note claims 6669 bytes"),
        ([ABI, elf.note(elf.manifest(version=9), elf.MANIFEST_NOTE)], "manifest has version 9"),
    ],
)
def test_notes_that_a_tender_does_not_see_or_refuses_are_refused(notes: Sequence[bytes], words: str) -> None:
    assert words in refusal(with_notes(*notes))


@pytest.mark.parametrize("offset", [1 << 20, 1 << 63, (1 << 64) - 1])
def test_a_note_beyond_the_end_of_the_file_is_refused(offset: int) -> None:
    far = replace(elf.notes(ABI)[0], offset=offset)
    assert "its PT_NOTE segment would end" in refusal(elf.Elf(segments=(far, *elf.notes(MANIFEST))).build())


@pytest.mark.parametrize(
    "loads, words",
    [
        ([elf.load(0xFF000)], "begins below 0x100000"),
        ([elf.load(0x100000, align=0)], "alignment 0x0"),
        ([elf.load(0x100000, align=0x3000)], "alignment 0x3000"),
        ([elf.load(0x100000, align=8)], "does not begin and end on pages"),
        ([elf.load(0x100800, align=2048)], "does not begin and end on pages"),
        ([elf.load(0x180000, align=0x200000)], "begins below 0x100000"),
        ([elf.load(0x102000), elf.load(0x100000)], "its segment at 0x100000 begins below 0x103000"),
        ([elf.load(0x100000, memory=0x1001), elf.load(0x101000)], "begins below 0x102000"),
        ([elf.load(0x100000), elf.load(0x100800)], "begins below 0x101000"),
        ([elf.load(0x100000, memory=15)], "smaller in memory (15) than in the file (16)"),
        ([elf.load(0x100000, size=1 << 40)], "is damaged or truncated"),
        ([elf.load(0x100000, offset=1 << 63)], "is damaged or truncated"),
        ([elf.load(0x100000, flags=7)], "both writable and executable"),
        ([elf.load(0x100000, flags=3)], "both writable and executable"),
    ],
)
def test_a_segment_that_a_tender_refuses_is_refused(loads: Sequence[elf.Segment], words: str) -> None:
    assert words in refusal(with_loads(*loads))


def test_a_segment_without_bytes_in_the_file_is_not_loaded() -> None:
    unloaded = elf.load(0, b"", memory=1 << 40, align=3, flags=7)
    assert read(with_loads(elf.load(), unloaded)).min_memory == (1 << 40) + GUEST_HEAP


def test_an_image_cut_off_anywhere_is_refused() -> None:
    content = SOUND.build()
    for end in range(len(content)):
        assert refusal(content[:end])


def test_an_image_that_shrinks_meanwhile_is_refused() -> None:
    content = SOUND.build()
    with pytest.raises(ImageError, match=re.escape("changed while it was read")):
        read(content[:-1], len(content))
