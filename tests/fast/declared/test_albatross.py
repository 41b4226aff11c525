"""Unikernels of albatross as declarations: what each value becomes, what is a note, and what is refused."""

import zlib
from dataclasses import replace
from typing import Any

import pytest

from solo5_systemd.declared import albatross
from solo5_systemd.declared.albatross import HostDevice, Unikernel, converted, converted_name, image_content
from solo5_systemd.declared.declaration import parse_declaration
from solo5_systemd.declared.specifiers import HostNames
from solo5_systemd.declared.syntax import Source
from solo5_systemd.errors import InvalidRequestError
from solo5_systemd.image.manifest import Device, DeviceKind, ImageFacts, Manifest, Target
from solo5_systemd.names import DeviceName, NetworkName
from solo5_systemd.workload import MIB, Workload

IMAGE = "/srv/unikernels/web.hvt"
MAC = bytes.fromhex("0200c0ffee01")
WEB = Unikernel(name=":web", image=b"elf", cpus=(0,), memory=32)
NET = HostDevice(name="service", host="br0", mac=MAC)
DISK = HostDevice(name="storage", host="data")


def facts(*devices: tuple[str, DeviceKind], target: Target = Target.HVT) -> ImageFacts:
    return ImageFacts(
        manifest=Manifest(
            target=target,
            abi_version=2,
            devices=tuple(Device(name=DeviceName(name), kind=kind) for name, kind in devices),
        ),
        entry=0x100000,
        load_end=0x200000,
        memory_end=0x200000,
    )


def workload(unikernel: Unikernel, known: ImageFacts | None = None) -> Workload:
    made = converted(unikernel, IMAGE, known)
    source = Source(path="web.unikernel", content=made.text.encode())
    return parse_declaration(
        made.name, [source], host=HostNames(), served=[NetworkName("br0"), NetworkName("service")]
    ).workload


def notes(unikernel: Unikernel, known: ImageFacts | None = None) -> str:
    made = converted(unikernel, IMAGE, known)
    comments = [line for line in made.text.splitlines() if line.startswith("# ")]
    assert [f"# {each}" for each in made.notes] == comments[1:], "each is a comment, too"
    return "\n".join(made.notes)


def test_the_whole_of_a_unikernel() -> None:
    unikernel = replace(
        WEB, name="foo:web", add_name=True, restart=(255, 2, 64), cpus=(3, 1), memory=30,
        blocks=(DISK,), bridges=(NET,),
        arguments=("--ipv4=10.0.0.2/24", "a b", "{x}", "%n", 'say "hi"', "two\nlines", ""), startup=3,
    )  # fmt: skip
    known = facts(("service", DeviceKind.NET_BASIC), ("storage", DeviceKind.BLOCK_BASIC))
    made = converted(unikernel, IMAGE, known)
    assert made.text == (
        "# Unikernel foo:web of albatross, written by solo5ctl convert.\n"
        "# albatross gives the guest its name as the first argument. If it exits with 64, it has no argument --name: "
        "remove that from Argument=.\n"
        "# Addresses in Argument= are as they were. {mirage} has those that the task is given.\n"
        "# Memory= is for guest (30 MiB) and tender (10 MiB).\n"
        '# NIC service was on bridge br0: add [network.br0] with join = "br0" below /etc/solo5, or write '
        "Network=service=default.\n"
        "# Disk storage, once albatross does not run: solo5ctl disk import foo-data /var/lib/albatross/block/foo:data\n"
        "# It was started at 3 in albatross' order: write After= with the units before it.\n"
        "\n"
        "[Unikernel]\n"
        "Image=/srv/unikernels/web.hvt\n"
        'Argument=--name=web --ipv4=10.0.0.2/24 "a b" {{x}} %%n "say \\"hi\\"" "two\\nlines" ""\n'
        "Memory=40M\n"
        "Network=service=br0,mac=02:00:c0:ff:ee:01\n"
        "Block=storage=disk:foo-data\n"
        "\n"
        "[Service]\n"
        "RestartForceExitStatus=2 255\n"
        "AllowedCPUs=1 3\n"
        "\n"
        "[Install]\n"
        "WantedBy=multi-user.target\n"
    )
    assert made.name == "foo-web"


def test_a_unikernel_with_nothing() -> None:
    found = workload(replace(WEB, cpus=()), facts())
    assert found == Workload(name=found.name, image=IMAGE, memory=40 * MIB)
    assert "[Service]" not in converted(replace(WEB, cpus=()), IMAGE, facts()).text


def test_a_guest_that_is_started_again_whatever_its_exit_code() -> None:
    text = converted(replace(WEB, restart=()), IMAGE, facts()).text
    assert "[Service]\nRestart=always\nRestartPreventExitStatus=1 60 61 62 63 64\n" in text
    assert "that a signal has ended" in notes(replace(WEB, restart=()), facts())
    assert "Restart" not in converted(WEB, IMAGE, facts()).text


@pytest.mark.parametrize(
    "name, mac",
    [(":web", "00:80:41:42:21:ba"), ("foo:web", "00:80:41:4b:69:ee")],
)
def test_a_mac_that_is_not_set_is_that_of_albatross(name: str, mac: str) -> None:
    unikernel = replace(WEB, name=name, bridges=(HostDevice(name="service"),))
    [nic] = workload(unikernel).nics
    assert (nic.mac, nic.network) == (mac, "service")
    assert "The MAC of NIC service is that of albatross, from 1.5 on" in notes(unikernel)


def test_disks_are_named_or_volumes_of_zfs() -> None:
    blocks = (HostDevice(name="a"), HostDevice(name="b", host="/dev/zvol/pool/foo-b", sector_size=4096))
    first, second = workload(replace(WEB, name="foo:bar:web", blocks=blocks)).disks
    assert (first.name, second.path, second.sector_size) == ("foo-bar-a", "/dev/zvol/pool/foo-b", 4096)
    assert "solo5ctl disk import foo-bar-a /var/lib/albatross/block/foo:bar:a" in notes(
        replace(WEB, name="foo:bar:web", blocks=blocks)
    )


def test_an_image_that_cannot_be_read_and_one_with_other_devices() -> None:
    assert "The image cannot be read as one of Solo5 for this host" in notes(WEB)
    known = facts(("service", DeviceKind.NET_BASIC), ("storage", DeviceKind.BLOCK_BASIC))
    assert "The devices of the image are others (storage, service): it will not start." in notes(WEB, known)
    assert "The devices of the image are others (none)" in notes(replace(WEB, bridges=(NET,)), facts())
    assert "devices" not in notes(replace(WEB, bridges=(NET,), blocks=(DISK,)), known)


def test_images_are_decompressed(monkeypatch: pytest.MonkeyPatch) -> None:
    content = bytes(100000)
    packed = replace(WEB, compressed=True, image=zlib.compress(content))
    assert image_content(packed) == content
    assert image_content(WEB) == b"elf"
    monkeypatch.setattr(albatross, "IMAGE_MAX", 99999)
    for large in (packed, replace(WEB, image=content)):
        with pytest.raises(
            InvalidRequestError, match="unikernel ':web': its image is too large: expected 0 MiB or less"
        ):
            image_content(large)


@pytest.mark.parametrize("image", [b"", b"elf", zlib.compress(b"image")[:-1]])
def test_an_image_that_is_no_zlib_stream(image: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="unikernel ':web': its image cannot be decompressed: .*expected a"):
        image_content(replace(WEB, compressed=True, image=image))


@pytest.mark.parametrize(
    "name",
    [
        "",
        ":",
        "::",
        "a::b",
        "a/b",
        "../a",
        "a\nb",
        "a b",
        "-a",
        "a" * 64,
        ":a:",
        "a:../../etc/passwd",
        "a\0",
        "ü",
        ".",
        "..",
        ".a",
    ],
)
def test_a_name_that_is_none(name: str) -> None:
    for act in (lambda u: converted_name(u), lambda u: converted(u, IMAGE, None)):
        with pytest.raises(InvalidRequestError, match="unikernel '.*': ") as refused:
            act(replace(WEB, name=name))
        assert "\n" not in refused.value.sentence


@pytest.mark.parametrize(
    "changed, sentence",
    [
        ({"name": ":".join(["a" * 60] * 3)}, "unikernel .*: task name"),
        ({"memory": 0}, "its memory is none of a guest: expected 1 to 1048576 MiB"),
        ({"memory": -(10**5000)}, "its memory is none"),
        ({"memory": 2**70}, "its memory is none"),
        ({"cpus": (-1,)}, "its processors are none: expected numbers from 0 to 8191"),
        ({"cpus": (10**5000,)}, "its processors are none"),
        ({"startup": 10**5000}, "place in the order is out of range"),
        ({"restart": (2, -1)}, "exit code"),
        ({"bridges": (HostDevice(name="a/b"),)}, "device name 'a/b' is not usable"),
        ({"bridges": (HostDevice(name="a", host="../b"),)}, "network name '../b' is not usable"),
        ({"bridges": (HostDevice(name="a", mac=b"\2"),)}, "the MAC of NIC a has 1 bytes: expected 6"),
        ({"bridges": (HostDevice(name="a", mac=b"\xff" * 6),)}, "MAC address 'ff:ff:ff:ff:ff:ff' is not usable"),
        ({"blocks": (HostDevice(name="a", host="../b"),)}, "the block device of disk a is '../b': expected a name"),
        ({"blocks": (HostDevice(name="a", host="/dev/zvol/../sda"),)}, "the block device of disk a"),
        ({"blocks": (HostDevice(name="a", host="/dev/zvol/a,ro"),)}, "the block device of disk a"),
        ({"blocks": (HostDevice(name="a", host=".b"),)}, "disk name '.b' is not usable"),
        ({"blocks": (HostDevice(name="a", sector_size=10**5000),)}, "a sector size"),
        ({"blocks": (HostDevice(name="a", sector_size=7),)}, "sector"),
        ({"blocks": (DISK, DISK)}, "unikernel ':web': "),
        ({"arguments": ("a\0b",)}, "unikernel ':web': "),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(changed: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidRequestError, match=sentence) as refused:
        converted(replace(WEB, **changed), IMAGE, None)
    assert "\n" not in refused.value.sentence
    assert refused.value.sentence.count("unikernel '") == 1
