"""The name servers of a network, or else of this host."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

import pytest

from solo5_systemd.base.names import NetworkName
from solo5_systemd.host import resolvers
from solo5_systemd.host.resolvers import HostResolvers, host_resolver
from solo5_systemd.settings.network_policy import Network, NetworkPolicy
from solo5_systemd.settings.resolver import UNSET, Resolver
from solo5_systemd.settings.solo5_toml import parse_settings

DEFAULT, LAB, OPEN = NetworkName("default"), NetworkName("lab"), NetworkName("open")
SETTINGS = parse_settings(
    {
        "network": {
            "lab": {"dns": ["10.0.0.53"]},
            "both": {"dns": ["10.0.0.54"], "search": ["both.example"]},
            "open": {"metadata": True},
            "six": {"ipv6": True},
            "lan": {"join": "br0", "ipv6": True},
            "four": {"join": "br1"},
        }
    }
)


def servers(*texts: str, search: tuple[str, ...] = ()) -> Resolver:
    return Resolver(servers=tuple(map(ip_address, texts)), search=search)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """resolv.conf, and that of systemd-resolved."""
    resolv_conf, resolved = tmp_path / "resolv.conf", tmp_path / "resolved.conf"
    resolv_conf.write_text("nameserver 192.0.2.1\nsearch host.example\n")
    resolved.write_text("nameserver 192.0.2.2\nnameserver 127.0.0.1\nsearch resolved.example\n")
    monkeypatch.setattr(resolvers, "RESOLV_CONF", resolv_conf)
    monkeypatch.setattr(resolvers, "RESOLVED", resolved)
    return resolv_conf, resolved


async def of(files: tuple[Path, Path], *networks: str) -> Resolver:
    return await HostResolvers(lambda: SETTINGS).of([NetworkName(name) for name in networks])


async def test_the_first_networks_setting_precedes_the_hosts_each_key_for_itself(files: tuple[Path, Path]) -> None:
    assert await of(files, "lab") == servers("10.0.0.53", search=("host.example",))
    assert await of(files, "both") == servers("10.0.0.54", search=("both.example",))
    assert await of(files, "default", "both", "lab") == servers("10.0.0.54", search=("both.example",))
    assert await of(files, "lab", "both") == servers("10.0.0.53", search=("both.example",))


@pytest.mark.parametrize("networks", [(), ("default",), ("unknown",)])
async def test_without_a_setting_they_are_the_hosts(files: tuple[Path, Path], networks: tuple[str, ...]) -> None:
    assert await of(files, *networks) == servers("192.0.2.1", search=("host.example",))


async def test_servers_at_metadata_addresses_need_a_network_that_opens_them(files: tuple[Path, Path]) -> None:
    files[0].write_text("nameserver 169.254.169.253\nnameserver 168.63.129.16\n")
    assert await of(files, "default") == UNSET
    assert await of(files, "open") == servers("169.254.169.253", "168.63.129.16")


async def test_servers_of_ipv6_are_for_networks_that_have_it(files: tuple[Path, Path]) -> None:
    files[0].write_text("nameserver fd00:ec2::253\nnameserver 2620:fe::fe\nnameserver 9.9.9.9\n")
    for networks in (("six",), ("lan",), ("default", "six")):
        assert await of(files, *networks) == servers("2620:fe::fe", "9.9.9.9"), networks
    for networks in (("default",), ("four",), ("unknown",)):
        assert await of(files, *networks) == servers("9.9.9.9"), networks


async def test_a_guest_in_a_namespace_gets_servers_of_both_for_its_lease(files: tuple[Path, Path]) -> None:
    files[0].write_text("nameserver 2620:fe::fe\nsearch host.example\n")
    assert await of(files, "namespace") == servers("2620:fe::fe", search=("host.example",))


def test_the_stub_is_replaced_by_what_is_behind_it(files: tuple[Path, Path]) -> None:
    files[0].write_text("nameserver 127.0.0.53\nsearch .\n")
    assert host_resolver() == servers("192.0.2.2", search=("resolved.example",))
    files[0].write_text("nameserver 127.0.0.53\nsearch lan\n")
    assert host_resolver() == servers("192.0.2.2", search=("lan",))
    files[0].write_text("nameserver 127.0.0.1\n")
    assert host_resolver() == UNSET, "another one is not taken for resolved"


def test_stub_without_resolveds_file(files: tuple[Path, Path]) -> None:
    files[1].unlink()
    files[0].write_text("nameserver 127.0.0.53\n")
    assert host_resolver() == UNSET
    files[0].write_text("nameserver 127.0.0.53\nnameserver 192.0.2.1\n")
    assert host_resolver() == servers("192.0.2.1")


KINDS: Mapping[str, Callable[[Path], object]] = {
    "nothing": lambda path: None,
    "a FIFO": os.mkfifo,
    "a directory": Path.mkdir,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a loop": lambda path: path.symlink_to(path),
    "binary": lambda path: path.write_bytes(bytes(range(256)) * 16),
}


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_what_is_no_resolv_conf_has_no_name_server(files: tuple[Path, Path], make: Callable[[Path], object]) -> None:
    files[0].unlink()
    make(files[0])
    assert host_resolver() == UNSET


def test_of_a_huge_file_the_beginning_is_read_and_no_half_line(files: tuple[Path, Path]) -> None:
    line = "nameserver 10.11.12.13\n"
    beginning = "#" * ((64 << 10) - len(line) + 1) + "\n"
    files[0].write_text(beginning + line + "#" * (1 << 20))
    assert host_resolver() == UNSET  # cut after 10.11.12.1
    files[0].write_text(line + "#" * (1 << 20))
    assert host_resolver() == servers("10.11.12.13")


def test_a_network_with_dhcp_is_found(files: tuple[Path, Path]) -> None:
    network = Network(name=NetworkName("served"), bridge="b", policy=NetworkPolicy(dhcp=True))
    found = HostResolvers(lambda: replace(SETTINGS, networks=(*SETTINGS.networks, network)))
    assert found.by_dhcp([NetworkName("default"), NetworkName("served")])
    assert not found.by_dhcp([NetworkName("default"), NetworkName("unknown")])
