"""What listings of nftables contain, and what a failed request means."""

import errno
import os
from collections.abc import Sequence

import pytest

from solo5_systemd.network import nft_tables
from solo5_systemd.network.nft_rules import CONTACTED, DYNAMIC, FLOWS, tables
from solo5_systemd.network.nft_tables import Tables


def test_elements_that_the_kernel_adds_are_none_of_the_services() -> None:
    """Also in a listing of nftables 1.0.6, which has no flag `dynamic`."""
    for name in DYNAMIC:
        listed = {"family": "ip", "name": name, "type": "inet_service", "size": 65536, "elem": [53, 5353]}
        assert list(nft_tables._elements({"set": listed})) == []
    assert {CONTACTED, FLOWS} <= DYNAMIC
    assert len(DYNAMIC) == tables((), forwards=False, owned=False).count("flags dynamic")


@pytest.mark.parametrize(("code", "may"), [(errno.ENOENT, False), (0, True), (errno.EPERM, True)])
@pytest.mark.parametrize("lost", [False, True])
def test_a_failed_lookup_is_a_flow_that_may_exist(code: int, may: bool, lost: bool) -> None:
    class Netfilter:
        def run(self, requests: Sequence[object]) -> Sequence[int]:
            if lost:
                raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))
            return [code] * len(requests)

    tables = object.__new__(Tables)
    tables._netfilter = Netfilter()  # type: ignore[assignment]
    assert tables._has(CONTACTED, b"\0\x35", 4) is (may or lost)
    assert tables._recorded(range(1, 100), 6) == ([*range(1, 100)] if may or lost else [])
