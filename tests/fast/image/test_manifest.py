import re

import pytest
from tests.fast.image import elfbuilder as elf
from tests.support.fakes.images import manifest
from tests.support.fakes.refusal import refusal

from solo5_systemd.base.errors import ImageError, InvalidRequestError
from solo5_systemd.base.names import DeviceName, Target
from solo5_systemd.image.manifest import StoredImage, decode_abi, decode_manifest, match


@pytest.mark.parametrize(
    "desc, words",
    [
        (b"", "holds 0 bytes: expected 16"),
        (elf.abi()[:15], "holds 15 bytes"),
        (elf.abi() + b"\0", "holds 17 bytes"),
        (elf.abi(reserved=(7, 0)), "reserved words (0x7, 0x0)"),
        (elf.abi(reserved=(0, 1)), "reserved words (0x0, 0x1)"),
        (elf.abi(0), "target number 0: expected hvt or spt"),
        (elf.abi(3, 1), "target virtio: expected hvt or spt"),
        (elf.abi(4, 4), "target muen"),
        (elf.abi(5), "target genode"),
        (elf.abi(6, 1), "target xen"),
        (elf.abi(7), "target number 7"),
        (elf.abi(1, 1), "hvt ABI version 1: expected 2"),
        (elf.abi(2, 3), "spt ABI version 3: expected 2"),
    ],
)
def test_an_abi_note_that_no_tender_here_runs_is_refused(desc: bytes, words: str) -> None:
    with pytest.raises(ImageError, match=re.escape(words)):
        decode_abi(desc)


def test_an_image_has_devices_in_order_of_shared_names_up_to_63_or_none() -> None:
    desc = elf.devices((b"storage", elf.BLOCK), (b"service", elf.NET), (b"service", elf.BLOCK))
    assert decode_manifest(desc) == (["service"], ["storage", "service"])
    assert decode_manifest(elf.manifest()) == ([], [])
    most = [b"x%066d" % number for number in range(63)]
    assert [name.encode() for name in decode_manifest(elf.devices(*((name, elf.NET) for name in most)))[0]] == most


@pytest.mark.parametrize(
    "desc, words",
    [
        (b"\0" * 11, "holds 11 bytes: expected at least 12"),
        (elf.manifest(version=2), "version 2: expected 1"),
        (elf.manifest(count=0), "counts 0 entries"),
        (elf.manifest([]), "counts 0 entries"),
        (elf.manifest([elf.entry()] * 65), "counts 65 entries"),
        (elf.manifest(count=2), "holds 116 bytes: expected 220 for 2 entries"),
        (elf.manifest(count=0xFFFFFFFF), "counts 4294967295 entries"),
        (elf.manifest() + b"\0", "holds 117 bytes: expected 116"),
        (elf.manifest()[:-1], "holds 115 bytes"),
        (elf.manifest([elf.entry(b"service", elf.NET)]), "does not begin with the reserved entry"),
        (elf.manifest([elf.entry(b"x")]), "does not begin with the reserved entry"),
        (elf.manifest([elf.entry(), elf.entry(b"x" * 68, elf.NET)]), "name of its manifest entry 1 does not end"),
        (elf.manifest([elf.entry(attached=1)]), "entry 0 sets fields"),
        (elf.manifest([elf.entry(), elf.entry(b"a", elf.NET, attached=255)]), "entry 1 sets fields"),
        (elf.manifest([elf.entry(), elf.entry(b"a", elf.NET, b"\2\0\0\0\0\1")]), "entry 1 sets fields"),
        (elf.manifest([elf.entry(), elf.entry(b"a", elf.BLOCK, b"\0" * 8 + b"\1\2")]), "entry 1 sets fields"),
        (elf.manifest([elf.entry(), elf.entry(b"a", elf.BLOCK, handle=b"\3")]), "entry 1 sets fields"),
        (elf.devices((b"", elf.NET)), "entry 1 cannot be attached: device name ''"),
        (elf.devices((b"a", elf.NET), (b"a b", elf.NET)), "entry 2 cannot be attached: device name 'a b'"),
        (elf.devices((b"net0\n", elf.NET)), r"device name 'net0\n'"),
        (elf.devices((b"\x1b[2J", elf.NET)), r"device name '\x1b[2J'"),
        (elf.devices((b"\xff", elf.NET)), "device name 'ÿ'"),
        (elf.devices(("é".encode(), elf.NET)), "device name"),
        (elf.devices((b"a", 0)), "entry 1 has the unknown type 0x0"),
        (elf.devices((b"a", 3)), "unknown type 0x3"),
        (elf.devices((b"", elf.RESERVED_FIRST)), "entry 1 has the unknown type 0x40000000"),
        (elf.devices((b"a", elf.NET), (b"a", elf.NET)), "declares NIC a 2 times"),
        (elf.devices((b"a", elf.BLOCK), (b"b", elf.NET), (b"a", elf.BLOCK)), "declares disk a 2 times"),
    ],
)
def test_a_manifest_damaged_in_any_field_is_refused(desc: bytes, words: str) -> None:
    with pytest.raises(ImageError, match=re.escape(words)):
        decode_manifest(desc)


def test_offered_devices_match_in_any_order() -> None:
    assert refusal(match, manifest(nics="a b", disks="c"), nics=["b", "a"], disks=iter("c")) == ""
    assert refusal(match, manifest(), nics=[], disks=[]) == ""


@pytest.mark.parametrize(
    "declared, nics, disks, words",
    [
        ("service", [], [], ["NIC service is not offered"]),
        ("", ["service"], [], ["NIC service is not declared", "The manifest declares no devices."]),
        ("service", [], ["service"], ["NIC service is not offered", "disk service is not declared"]),
        ("service", ["service", "service"], [], ["NIC service is offered 2 times"]),
        (
            *("service storage", ["storage", "net1"], ["disk1"]),
            [
                *("disk storage is not offered", "NIC service is not offered", "NIC storage is not declared"),
                *("NIC net1 is not declared", "disk disk1 is not declared"),
            ],
        ),
    ],
)
def test_differences_are_all_named(declared: str, nics: list[str], disks: list[str], words: list[str]) -> None:
    nic, _, disk = declared.partition(" ")
    with pytest.raises(InvalidRequestError) as caught:
        match(manifest(nics=nic, disks=disk), map(DeviceName, nics), map(DeviceName, disks))
    assert [word for word in words if word not in str(caught.value)] == []
    assert caught.value.sentence.count(";") + 1 == len([word for word in words if "manifest" not in word])


def test_a_disk_that_is_missing_has_what_gives_it() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        match(manifest(disks="storage"), [], [])
    hint = str(caught.value).removeprefix(caught.value.sentence).strip()
    assert hint.startswith("The manifest declares disk storage. A disk is given by --block storage=PATH of solo5ctl")
    assert 'Block=storage=PATH in [Unikernel], or by block "storage" { source = "PATH" } in the job' in hint


MEMO = StoredImage(
    sha256="0123456789abcdef" * 4,
    size=1 << 20,
    manifest=manifest(Target.SPT, nics="service", disks="storage"),
)


@pytest.mark.parametrize(
    "old, new",
    [
        (MEMO.sha256, "../../etc/shadow"),
        (MEMO.sha256, "A" * 64),
        ("spt", "virtio"),
        (f"{MEMO.manifest.min_memory}", '"0x100020"'),
        (f"{MEMO.manifest.min_memory}", "null"),
        (f"{MEMO.manifest.min_memory}", f"{1 << 70}"),
        ("storage", "a b"),
        ('"disks"', '"tapes"'),
    ],
)
def test_a_damaged_memo_is_refused(old: str, new: str) -> None:
    with pytest.raises(InvalidRequestError):
        StoredImage.decode(MEMO.encode().replace(old.encode(), new.encode()), "")
