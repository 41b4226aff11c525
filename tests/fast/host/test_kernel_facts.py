from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network

import pytest
from tests.fast.host.test_checks import GOOD as HEALTHY

from solo5_systemd.base.names import NetworkName
from solo5_systemd.host.checks import Fact, Kernel, Verdict, facts
from solo5_systemd.host.other_filters import DroppingChain
from solo5_systemd.network.network_ranges import Overtaken
from solo5_systemd.settings.addresses import AddressRange
from solo5_systemd.settings.network import Join, NetworkSettings
from solo5_systemd.settings.network_keys import HostPort, NetworkPolicy

HOST = replace(HEALTHY, controllers=(), files={}, tenders=(), tender_paths=(), devices={}, store=None, kernel=Kernel())
GOOD = Kernel(mmap_min_addr=65536, overcommit=0, dropping_chains=(), br_netfilter=True, run_free=1 << 30)
DROPPING = DroppingChain(name="ip filter FORWARD", bridges=("solo5-default",), remedy=("open it", "for good"))


def fact(name: str, kernel: Kernel) -> Fact:
    return next(it for it in facts(replace(HOST, kernel=kernel)) if it.name == name)


@pytest.mark.parametrize("name, value", [("mmap_min_addr", "65536"), ("overcommit", "0"), ("nftables", "usable")])
def test_a_kernel_that_is_as_it_should_be_needs_no_advice(name: str, value: str) -> None:
    assert fact(name, GOOD) == Fact(name=name, value=value)
    assert "/run" not in {it.name for it in facts(replace(HOST, kernel=GOOD))}


@pytest.mark.parametrize(
    "name, kernel, value, words",
    [
        ("mmap_min_addr", replace(GOOD, mmap_min_addr=65537), "65537", "sysctl vm.mmap_min_addr=65536"),
        ("mmap_min_addr", Kernel(), "unknown", "cannot be read"),
        ("overcommit", replace(GOOD, overcommit=2), "2", "may be refused"),
        ("nftables", Kernel(), "unavailable", "root"),
        ("nftables", Kernel(missing_modules=()), "unavailable", "get no network: `modprobe nf_tables` loads it"),
        ("kernel modules", replace(GOOD, missing_modules=("tun",)), "tun missing", "no network: `modprobe tun` loads"),
        ("sleep", replace(GOOD, lacks_log=True), "nfnetlink_log missing", "No task sleeps: `modprobe nfnetlink_log`"),
        (
            "nftables",
            replace(GOOD, dropping_chains=(DROPPING, replace(DROPPING, name="inet fw forward", remedy=("more",)))),
            "ip filter FORWARD drops packets of solo5-default; inet fw forward drops packets of solo5-default",
            "beyond this host or among themselves, until these are accepted: open it && for good && more",
        ),
        (
            "nftables",
            replace(GOOD, dropping_chains=(DROPPING,), br_netfilter=False),
            "ip filter FORWARD drops packets of solo5-default",
            "beyond this host, until these are accepted: open it && for good",
        ),
    ],
)
def test_a_limiting_setting_has_advice(name: str, kernel: Kernel, value: str, words: str) -> None:
    found = fact(name, kernel)
    assert (found.verdict, found.value) == (Verdict.LIMITED, value)
    assert words in found.advice


def test_a_host_that_forwards_for_others_is_to_be_a_router() -> None:
    found = fact("forwarding", replace(GOOD, forwarding_tables=("ip nat",)))
    assert found.verdict is Verdict.LIMITED
    assert found.value == "dropped between other links, for which there is table ip nat"
    assert "ip_forward=1" in found.advice
    assert "forwarding" not in {each.name for each in facts(replace(HOST, kernel=GOOD))}


def test_a_host_that_forwards_ipv6_for_others_is_to_be_a_router_of_ipv6() -> None:
    found = fact("forwarding of IPv6", replace(GOOD, forwarding_tables6=("ip6 nat",)))
    assert (found.verdict, found.value.endswith("there is table ip6 nat")) == (Verdict.LIMITED, True)
    command = "echo net.ipv6.conf.all.forwarding=1 >/etc/sysctl.d/50-ipv6-forward.conf && systemctl restart systemd"
    assert command in found.advice
    assert not [each for each in facts(replace(HOST, kernel=GOOD)) if each.name.startswith("forwarding")]


def test_a_full_run_directory_is_in_the_way_of_every_task() -> None:
    found = fact("/run", replace(GOOD, run_free=8 << 10))
    assert (found.verdict, found.value) == (Verdict.BROKEN, "8 KiB free")


def test_what_networks_open_is_shown() -> None:
    closed, lab = (NetworkSettings(name=NetworkName(name), bridge=f"solo5-{name}") for name in ("default", "lab"))
    host = (HostPort(port=53, protocol="udp"), HostPort(port=8080, protocol="tcp"))
    policy = NetworkPolicy(host=host, metadata=True, reach=(NetworkName("default"),), routed=True)
    fragments = NetworkPolicy(fragments=True)
    for networks, value in (
        ((closed, lab), "closed except published ports and outgoing connections"),
        (
            (
                closed,
                replace(lab, bridge="br0", join=Join(vlan=20)),
                replace(lab, bridge="br1", join=Join(), ipv4=(lan := IPv4Network("192.168.1.0/24"))),
                replace(lab, bridge="br2", join=Join(pool=AddressRange(lan[2], lan[9])), ipv4=lan, policy=fragments),
            ),
            "lab opens fragments; lab joins br0 with VLAN 20, addresses by DHCP; lab joins br1, requested addresses of "
            "192.168.1.0/24; lab joins br2, addresses from 192.168.1.2-192.168.1.9",
        ),
        (
            (closed, replace(lab, policy=policy)),
            "lab opens 53/udp, 8080/tcp of this host, the metadata service, network default, unpublished ports",
        ),
    ):
        [found] = [it for it in facts(replace(HOST, networks=networks)) if it.name == "networks"]
        assert found == Fact(name="networks", value=value)


def test_a_route_that_takes_packets_for_guests_is_named_with_its_remedy() -> None:
    taken = Overtaken(
        network=NetworkName("default"),
        bridge="solo5-default",
        inside=IPv4Network("10.88.0.0/16"),
        guest=IPv4Address("10.88.5.7"),
        route="route 10.88.5.0/24 of link wg0",
    )
    found = fact("routes", replace(GOOD, overtaken=(taken,)))
    assert found.verdict is Verdict.LIMITED
    assert found.value == "route 10.88.5.0/24 of link wg0 takes packets for guests of 10.88.0.0/16"
    assert "ip -4 route replace 10.88.0.0/16 dev solo5-default table 505 && ip -4 rule add " in found.advice
