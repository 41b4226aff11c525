"""What listings of nftables contain, and what a failed request means."""

import errno
import os

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


@pytest.mark.parametrize(("code", "may"), [(errno.ENOENT, False), (errno.ENOBUFS, True), (errno.EPERM, True)])
def test_a_failed_lookup_is_a_flow_that_may_exist(code: int, may: bool) -> None:
    class Netfilter:
        def request(self, *_: object) -> None:
            raise OSError(code, os.strerror(code))

    tables = object.__new__(Tables)
    tables._netfilter = Netfilter()  # type: ignore[assignment]
    assert tables._has(CONTACTED, b"\0\x35", 4) is may
