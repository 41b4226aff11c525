"""Dumps of albatross: each format that is read, and bytes that are none."""

import random
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import albatross as der

from solo5_systemd.declared.albatross import Dump, HostDevice, Unikernel
from solo5_systemd.declared.albatross_dump import VERSIONS, read_dump
from solo5_systemd.errors import InvalidRequestError

MAC = bytes.fromhex("008041112233")


def whole(version: int) -> bytes:
    full = der.config(
        version,
        b"\x7fELF" + bytes(300),
        compressed=True,
        startup=7 if version >= 5 else None,
        add_name=version >= 5,
        on_failure=der.restart(2, 255),
        cpus=(1, 3) if version == 6 else (1,),
        memory=256,
        blocks=[der.block("storage", "data", 4096), der.block("other")],
        bridges=[der.bridge("service", "br0", MAC), der.bridge("management")],
        arguments=["--ipv4=10.0.0.2/24", "", "ü"],
    )
    plain = der.config(version, b"image")
    return der.dump(version, [(":dns", plain), ("foo:web", full)], [("foo:", der.policy(block_mb=10))])


@pytest.mark.parametrize("version", VERSIONS)
def test_each_format_is_read(version: int) -> None:
    found = read_dump(whole(version))
    dns, web = found.unikernels
    assert (found.version, found.policies) == (VERSIONS[version], () if version == 3 else ("foo:",))
    assert web == Unikernel(
        name="foo:web",
        compressed=True,
        image=b"\x7fELF" + bytes(300),
        startup=7 if version >= 5 else None,
        add_name=version >= 5,
        restart=(2, 255),
        cpus=(1, 3) if version == 6 else (1,),
        memory=256,
        blocks=web.blocks,
        bridges=web.bridges,
        arguments=("--ipv4=10.0.0.2/24", "", "ü"),
    )
    assert set(web.blocks) == {HostDevice(name="storage", host="data", sector_size=4096), HostDevice(name="other")}
    assert set(web.bridges) == {HostDevice(name="service", host="br0", mac=MAC), HostDevice(name="management")}
    assert dns == Unikernel(name=":dns", image=b"image", cpus=(0,), memory=32)


def test_what_is_of_bhyve_and_what_restarts_always() -> None:
    data = der.dump(
        6,
        [
            (":vm", der.config(6, b"", kind=der.BHYVE, numcpus=4, boot_partition="msdos1")),
            (":web", der.config(6, b"image", on_failure=der.restart())),
        ],
    )
    vm, web = read_dump(data).unikernels
    assert (vm.is_solo5, vm.restart, web.is_solo5, web.restart) == (False, None, True, ())


def test_a_dump_without_unikernels() -> None:
    assert read_dump(der.dump(6, [])) == Dump(version="2.7", unikernels=())


@pytest.mark.parametrize(
    "data, sentence",
    [
        (b"", "the file is no dump of albatross: expected the file `state`"),
        (b"\x7fELF", "the file is no dump of albatross"),
        (der.sequence(), "the file is no dump of albatross"),
        (der.explicit(0, der.sequence()), "of a release of albatross before 1.1: expected 1.1 to 2.7"),
        (der.explicit(7, der.NULL), "of a release of albatross after 2.7: expected 1.1 to 2.7"),
        (b"\xbf\x82\x01\x00", "of a release of albatross after 2.7"),
        (der.dump(6, []) + b"x", "the dump cannot be decoded: "),
        (b"\xa6\x84\x40\x00\x00\x00" + bytes(100), "the dump cannot be decoded: "),
        (b"\xa6\x80" + der.sequence(der.sequence(), der.sequence()) + b"\0\0", "the dump cannot be decoded: "),
        (der.explicit(6, der.sequence(der.sequence())), "the dump cannot be decoded: "),
        (der.explicit(6, der.sequence(der.sequence(der.sequence(der.octets(b"x"))))), "the dump cannot be decoded: "),
        (der.explicit(6, b"\x30\x80" * 20000), "the dump cannot be decoded: "),
        (der.explicit(3, b"".join(der.sequence() for _ in range(3))), "the dump cannot be decoded: "),
        (der.dump(5, [(":web", der.config(6, b"image"))]), "the dump cannot be decoded: "),
        (
            der.explicit(3, der.sequence(der.sequence(der.utf8(":web"), der.config(3, b""), der.NULL))),
            "the dump cannot be decoded: it is not the encoding of its content",
        ),
        (
            der.explicit(6, der.sequence(der.sequence(), der.sequence()), der.NULL),
            "the dump cannot be decoded: it is not the encoding of its content",
        ),
    ],
)
def test_what_is_none_is_refused_in_one_sentence(data: bytes, sentence: str) -> None:
    with pytest.raises(InvalidRequestError, match=sentence) as refused:
        read_dump(data)
    assert "\n" not in refused.value.sentence
    assert len(refused.value.sentence) < 300


def test_text_that_is_not_utf8_is_refused() -> None:
    data = der.dump(6, [(":web", der.config(6, b"image", arguments=["x"]))]).replace(b"\x0c\x01x", b"\x0c\x01\xff")
    with pytest.raises(InvalidRequestError, match="the dump cannot be decoded"):
        read_dump(data)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_dump_that_is_cut_off_is_refused(version: int) -> None:
    data = whole(version)
    for end in range(len(data)):
        with pytest.raises(InvalidRequestError):
            read_dump(data[:end])


def test_a_dump_with_changed_bytes_is_read_or_refused() -> None:
    data, chance = whole(6), random.Random(6)
    refused = 0
    for _ in range(3000):
        changed = bytearray(data)
        for _ in range(chance.randrange(1, 4)):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        try:
            read_dump(bytes(changed))
        except InvalidRequestError:
            refused += 1
    assert 0 < refused < 3000


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([0xA3, 0xA4, 0xA5, 0xA6]), st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(tag: int, content: bytes) -> None:
    found: Dump | None = None
    with suppress(InvalidRequestError):
        found = read_dump(der.tlv(tag, content))
    assert found is None or found.version == VERSIONS[tag & 0x1F]
