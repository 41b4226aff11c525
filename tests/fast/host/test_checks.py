"""Doctor's facts and their verdicts."""

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network

import pytest

from solo5_systemd.base.dependencies import DEPENDENCIES, Dependency
from solo5_systemd.base.names import NetworkName, Target
from solo5_systemd.host.checks import Fact, Host, Kernel, Verdict, facts
from solo5_systemd.host.other_firewalls import DroppingChain
from solo5_systemd.network.network_ranges import Overtaken
from solo5_systemd.settings.addresses import AddressRange
from solo5_systemd.settings.network_policy import Join, Network, NetworkPolicy
from solo5_systemd.unit.tender import Tender

HVT = Tender(path="/usr/bin/solo5-hvt", target=Target.HVT, version="0.12.1", abi_version=2)
SPT = Tender(path="/usr/bin/solo5-spt", target=Target.SPT, version="0.12.1", abi_version=2)
OLD = replace(HVT, abi_version=1)
GOOD = Host(
    systemd=257,
    booted=True,
    controllers=("cpuset", "cpu", "io", "memory", "pids"),
    missing=(),
    files={"/usr/lib/systemd/system/solo5.slice": True},
    user=True,
    settings="",
    tenders=(HVT, SPT),
    tender_paths=("/usr/bin",),
    devices={"/dev/kvm": "", "/dev/net/tun": ""},
    store=("/var/lib/solo5/images", 1 << 30, 1 << 28),
    persistent_journal=True,
    kernel=Kernel(dropping_chains=(), run_free=1 << 30),
)


def dependency(name: str) -> Dependency:
    return next(each for each in DEPENDENCIES if each.name == name)


def fact(host: Host, name: str) -> Fact:
    return next(fact for fact in facts(host) if fact.name == name)


def test_a_good_host_has_nothing_to_do() -> None:
    assert {(each.verdict, each.advice) for each in facts(GOOD)} == {(Verdict.OK, "")}
    values = {each.name: each.value for each in facts(GOOD)}
    assert values["nftables"] == "usable"
    assert not {"/run", "routes", "sleep", "forwarding", "forwarding of IPv6"} & values.keys()
    assert fact(replace(GOOD, persistent_journal=False), "journal").verdict is Verdict.OK, "one in memory will do"
    assert "/a, /c" in fact(replace(GOOD, files={"/a": False, "/b": True, "/c": False}), "units and policy").advice


@pytest.mark.parametrize(
    ("change", "name", "value", "verdict"),
    [
        ({"systemd": 251}, "systemd", "251", Verdict.BROKEN),
        ({"systemd": None}, "systemd", "not found", Verdict.BROKEN),
        ({"booted": False}, "systemd", "257, not PID 1", Verdict.BROKEN),
        ({"controllers": None}, "cgroups", "version 1", Verdict.LIMITED),
        ({"controllers": ("cpu", "pids")}, "cgroups", "version 2 without cpuset, memory", Verdict.LIMITED),
        ({"missing": (dependency("nftables"),)}, "Python module nftables", "missing", Verdict.BROKEN),
        ({"missing": (dependency("pystemd"), dependency("grpc"))}, "Python module grpc", "missing", Verdict.BROKEN),
        ({"files": {"/a": False, "/b": True, "/c": False}}, "units and policy", "2 missing", Verdict.BROKEN),
        ({"drop_ins": "Remove solo5-.service.d/a.conf."}, "drop-ins", "change the units of tasks", Verdict.BROKEN),
        ({"user": False}, "user solo5", "missing", Verdict.BROKEN),
        ({"settings": "x.toml is wrong."}, "/etc/solo5", "x.toml is wrong.", Verdict.BROKEN),
        ({"tenders": (SPT,)}, "solo5-hvt", "not found", Verdict.LIMITED),
        ({"tenders": ()}, "solo5-spt", "not found", Verdict.BROKEN),
        ({"tenders": (OLD, SPT)}, "solo5-hvt", "/usr/bin/solo5-hvt has ABI 1", Verdict.LIMITED),
        (
            {"tenders": (replace(HVT, loads=("/lib", "/usr/lib"), loads_because="it uses dlopen"), SPT)},
            "solo5-hvt",
            "/usr/bin/solo5-hvt, version 0.12.1; its tasks can read all of /lib, /usr/lib: it uses dlopen",
            Verdict.LIMITED,
        ),
        ({"devices": {"/dev/kvm": "it is not there."}}, "/dev/kvm", "cannot be used", Verdict.LIMITED),
        (
            {"launcher": False},
            "solo5-confine",
            "not installed: a tender that its guest has taken over has all requests (ioctl) of its disks and taps",
            Verdict.LIMITED,
        ),
        ({"store": ("/s", 63 << 20, 0)}, "image store", "/s, 63 MiB free", Verdict.BROKEN),
        ({"store": ("/s", 100 << 20, 101 << 20)}, "image store", "/s, 100 MiB free", Verdict.LIMITED),
    ],
)
def test_what_is_wrong_comes_with_advice(change: dict[str, object], name: str, value: str, verdict: Verdict) -> None:
    found = fact(replace(GOOD, **change), name)  # type: ignore[arg-type]
    assert (found.value, found.verdict) == (value, verdict)
    assert found.advice


def test_a_journal_namespace_that_cannot_be_used_is_in_the_way_of_every_task() -> None:
    usable = replace(GOOD, log_namespace="guests")
    assert fact(usable, "journal").value == "kept over a reboot; consoles in namespace guests"
    limited = fact(replace(usable, console_problem="journald stores none."), "journal")
    assert (limited.verdict, limited.advice) == (Verdict.LIMITED, "journald stores none.")
    broken = fact(replace(usable, namespace_problem="its journald is failed"), "journal")
    assert (broken.verdict, broken.value) == (Verdict.BROKEN, "no namespace guests: its journald is failed")
    assert "systemctl status systemd-journald@guests.service" in broken.advice


KERNEL = Kernel(dropping_chains=(), run_free=1 << 30)
DROPPING = DroppingChain(name="ip filter FORWARD", bridges=("solo5-default",), remedy=("open it", "for good"))
TAKEN = Overtaken(
    network=NetworkName("default"),
    bridge="solo5-default",
    inside=IPv4Network("10.88.0.0/16"),
    guest=IPv4Address("10.88.5.7"),
    route="route 10.88.5.0/24 of link wg0",
)


@pytest.mark.parametrize(
    "name, kernel, value, words",
    [
        ("nftables", Kernel(), "unavailable", "root"),
        ("nftables", Kernel(missing_modules=()), "unavailable", "get no network: `modprobe nf_tables` loads it"),
        ("kernel modules", replace(KERNEL, missing_modules=("tun",)), "tun missing", "network: `modprobe tun` loads"),
        ("sleep", replace(KERNEL, lacks_log=True), "nfnetlink_log missing", "No task sleeps: `modprobe nfnetlink_log`"),
        (
            "nftables",
            replace(KERNEL, dropping_chains=(DROPPING, replace(DROPPING, name="inet fw forward", remedy=("more",)))),
            "ip filter FORWARD drops packets of solo5-default; inet fw forward drops packets of solo5-default",
            "Tasks reach nothing beyond this host, until these are accepted: open it && for good && more",
        ),
        (
            "forwarding",
            replace(KERNEL, forwarding_tables=("ip nat",)),
            "dropped between other links, for which there is table ip nat",
            "ip_forward=1",
        ),
        (
            "forwarding of IPv6",
            replace(KERNEL, forwarding_tables6=("ip6 nat",)),
            "dropped between other links, for which there is table ip6 nat",
            "echo net.ipv6.conf.all.forwarding=1 >/etc/sysctl.d/50-ipv6-forward.conf && systemctl restart systemd",
        ),
    ],
)
def test_what_limits_networks_has_advice(name: str, kernel: Kernel, value: str, words: str) -> None:
    found = fact(replace(GOOD, kernel=kernel), name)
    assert (found.verdict, found.value) == (Verdict.LIMITED, value)
    assert words in found.advice


def test_a_full_run_directory_is_in_the_way_of_every_task() -> None:
    found = fact(replace(GOOD, kernel=replace(KERNEL, run_free=8 << 10)), "/run")
    assert (found.verdict, found.value) == (Verdict.BROKEN, "8 KiB free")


def test_what_networks_open_is_shown() -> None:
    closed, lab = (Network(name=NetworkName(name), bridge=f"solo5-{name}") for name in ("default", "lab"))
    host = ("53/udp", "8080/tcp")
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
        assert fact(replace(GOOD, networks=networks), "networks") == Fact(name="networks", value=value)
