"""One guest and one client with one connection, through changes that others make to the network beneath them.

The connection is the first one after each, and carries messages again within a second of the repair; datagrams of the
moments in between are lost, as on any network.
"""

import json
import re
import time
from functools import partial
from ipaddress import IPv4Interface
from pathlib import Path

from tests.machine.conftest import Machine, Outside, Runner, address, eventually, inspect, ok, sh
from tests.machine.test_network import GATEWAY, IPV4
from tests.machine.traffic import traffic

BRIDGE = "solo5-default"
REPAIR = "network repaired: "
SOON = 5
"""Seconds of a repair, on a machine that is busy."""

SYSCTLS = Path("/proc/sys/net/ipv4")


FAULTS = {
    "nft flush ruleset": "",  # an owner's tables are skipped by others (Linux 6.9, nftables 1.1.0)
    f"ip link delete {BRIDGE}": f"bridge {BRIDGE} of network default was missing",
    f"ip link set {BRIDGE} down": f"bridge {BRIDGE} of network default was down or had lost a setting",
    f"ip address flush dev {BRIDGE}": f"bridge {BRIDGE} of network default was down or had lost a setting",
    "ip link set TAP down": "tap .* was missing, down or not on its bridge",
    "ip link set TAP nomaster": "tap .* was missing, down or not on its bridge",
    # As by a program for which the host forwards, at its end.
    f"echo 1 >{SYSCTLS}/ip_forward; echo 0 >{SYSCTLS}/ip_forward": "net.ipv4.conf",
    f"for link in all default {BRIDGE} cable; do echo 1 >{SYSCTLS}/conf/$link/rp_filter; done": "",
    # A VPN brings routes in which the range of every network is; the bridges' own routes are longer.
    "ip link add vpn type veth peer name vpn-peer; ip link set vpn up; "
    "for route in 10.0.0.0/8 172.16.0.0/12 192.168.0.0/16; do ip route add $route dev vpn; done": "",
}


def test_a_connection_survives_a_fault_of_the_network(machine: Machine, outside: Outside, run: Runner) -> None:
    """With its repair in the journal at once; where there is nothing to repair, none is."""
    task = run("net.hvt", IPV4, GATEWAY, options=("-p", "7007:7", "-p", "7007:7/udp"))
    [nic] = inspect(task)["nics"]
    for lost in filter(None, FAULTS.values()):
        machine.expect(f"^{REPAIR}{lost}")
    filters = {path: path.read_text() for path in SYSCTLS.glob("conf/*/rp_filter")}
    with traffic(outside, outside.here, 7007, patience=1) as flow:
        for fault, lost in FAULTS.items():
            flow.goes_on()
            begun = time.time()
            since = f"@{begun:.6f}"
            ok("sh", "-ec", fault.replace("TAP", nic["tap"]))
            if lost:
                eventually(partial(is_repaired, lost, since), "it is repaired")
                seconds = is_repaired(lost, since) - begun
                print(f"{fault}: repaired after {seconds:.2f} s")
                assert seconds < SOON, fault
            flow.goes_on()
            assert lost or REPAIR not in repairs(since), fault
    ok("ip", "link", "delete", "vpn")
    for path, text in filters.items():
        path.write_text(text)


def is_repaired(sentence: str, since: str) -> float:
    """Return when it was, in seconds since the epoch, or 0."""
    found = re.search(rf"^(\S+) .*{sentence}", repairs(since), re.MULTILINE)
    return float(found[1]) if found else 0


def repairs(since: str) -> str:
    return ok("journalctl", "--quiet", "--output=short-unix", f"--since={since}", "--unit=solo5-networkd")


def test_a_more_specific_route_is_named_with_its_remedy(machine: Machine, run: Runner) -> None:
    """As of a VPN that comes up while a guest runs: doctor and the next start say what to type; nothing is changed."""
    machine.expect("network not repaired: route .* of link vpn takes the packets")
    task = run("net.hvt", IPV4, GATEWAY)
    guest = address(task)
    eventually(lambda: sh("ping", "-c1", "-W1", guest).returncode == 0, "it answers a ping")
    taken = str(IPv4Interface(f"{guest}/28").network)
    since = f"@{time.time():.6f}"
    ok("ip", "link", "add", "vpn", "type", "veth", "peer", "name", "vpn-far")
    try:
        for link in ("vpn", "vpn-far"):
            ok("ip", "link", "set", link, "up")
        ok("ip", "route", "add", taken, "dev", "vpn")
        assert sh("ping", "-c1", "-W1", guest).returncode != 0
        facts = json.loads(sh("solo5ctl", "doctor", "--json").stdout)
        [fact] = [each for each in facts if each["name"] == "routes"]
        assert fact["value"].startswith(f"route {taken} of link vpn takes packets for guests of 10.")
        assert "not repaired" not in repairs(since)
        ok("systemctl", "restart", f"solo5-task-{task}.service")
        assert f"not repaired: route {taken} of link vpn takes" in repairs(since)
        assert f"not repaired: route {taken}" in ok("solo5ctl", "network", "repairs")
        ok("sh", "-ec", fact["advice"].partition("gives them back: ")[2])
        eventually(lambda: sh("ping", "-c1", "-W1", guest).returncode == 0, "it answers a ping again")
        assert not [each for each in json.loads(sh("solo5ctl", "doctor", "--json").stdout) if each["name"] == "routes"]
    finally:
        sh("ip", "link", "delete", "vpn")
        sh("ip", "rule", "delete", "priority", "1")
