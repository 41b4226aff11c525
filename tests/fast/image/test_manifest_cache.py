import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solo5_systemd.errors import InvalidRequestError
from solo5_systemd.image.manifest import Device, DeviceKind, ImageFacts, Manifest, Target
from solo5_systemd.image.manifest_cache import Memo, is_sha256
from solo5_systemd.names import DeviceName

MEMO = Memo(
    sha256="0123456789abcdef" * 4,
    facts=ImageFacts(
        manifest=Manifest(
            target=Target.SPT,
            abi_version=2,
            devices=(
                Device(name=DeviceName("service"), kind=DeviceKind.NET_BASIC),
                Device(name=DeviceName("storage"), kind=DeviceKind.BLOCK_BASIC),
            ),
        ),
        entry=0x100020,
        load_end=0x108000,
        memory_end=0x30BCB0,
    ),
)


def test_a_memo_comes_back_as_it_was_written() -> None:
    assert Memo.decode(MEMO.encode()) == MEMO


@pytest.mark.parametrize(
    "change",
    [
        {"sha256": "../../etc/shadow"},
        {"sha256": "A" * 64},
        {"target": "virtio"},
        {"abi_version": -1},
        {"entry": "0x100020"},
        {"load_end": None},
        {"memory_end": 1 << 70},
        {"devices": [{"name": "a b", "kind": "NET_BASIC"}]},
        {"devices": [{"name": "a", "kind": "TAPE"}]},
        {"devices": [{"name": "a", "kind": "NET_BASIC"}] * 64},
        {"devices": 7},
    ],
)
def test_a_damaged_memo_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        Memo.decode(json.dumps(json.loads(MEMO.encode()) | change).encode())


@given(st.binary() | st.integers(0, len(MEMO.encode()) - 1).map(lambda end: MEMO.encode()[:end]))
def test_bytes_that_are_no_memo_are_refused(content: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        Memo.decode(content)


def test_a_sha256_has_64_small_hexadecimal_digits() -> None:
    assert is_sha256(MEMO.sha256)
    assert not is_sha256(MEMO.sha256[1:])
    assert not is_sha256("g" * 64)
