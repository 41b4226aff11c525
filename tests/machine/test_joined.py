"""Tasks on a joined bridge: guests are machines of its LAN."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.machine.conftest import (
    GUESTS,
    Files,
    Machine,
    Outside,
    Runner,
    address,
    cable,
    eventually,
    inspect,
    lease,
    ok,
    sh,
    systemctl,
)
from tests.machine.declared import Declarations

IPV4 = "--ipv4={net.service.ipv4_cidr}"
ON_LAN = ("--net", "service=lan")
SETTINGS = Path("/etc/solo5/machine-test.toml")
POOL = 'ipv4 = "192.0.2.0/24"\npool = "192.0.2.200-192.0.2.209"\n'


@contextmanager
def bridged(other: Outside, *options: str) -> Iterator[Outside]:
    """Make the machine's end of the cable a port of br0, which gets its address."""
    ok("ip", "link", "add", "br0", "type", "bridge", *options)
    try:
        ok("ip", "address", "flush", "dev", "cable")
        ok("ip", "link", "set", "cable", "master", "br0")
        ok("ip", "address", "add", f"{other.here}/24", "dev", "br0")
        ok("ip", "link", "set", "br0", "up")
        yield other
    finally:
        sh("ip", "link", "delete", "br0")


@pytest.fixture
def lan(machine: Machine) -> Iterator[Outside]:
    with cable(Outside()) as other, bridged(other):
        yield other


def bridge() -> object:
    [found] = json.loads(ok("ip", "-json", "-4", "address", "show", "br0"))
    return found


def answers(other: Outside, address: str, what: str) -> None:
    eventually(lambda: other.sh("ping", "-c1", "-W1", address).returncode == 0, what)


def test_a_guest_is_reached_at_its_own_address_and_its_bridge_stays(lan: Outside, run: Runner, place: Files) -> None:
    place(SETTINGS, f'[network.lan]\njoin = "br0"\n{POOL}')
    task = run("net.spt", IPV4, options=ON_LAN)
    own = address(task)
    answers(lan, own, "the LAN reaches it")
    assert lan.udp(own, 7, "from the LAN") == "from the LAN"
    assert lease(task) | {"bridge": "br0", "gateway4": None} == lease(task)
    assert own in ok("solo5ctl", "ps")
    text = ok("solo5ctl", "network", "inspect", "lan")
    assert "Joins: br0 (exists)" in text
    assert "Addresses: leased from 192.0.2.200-192.0.2.209" in text
    assert "lan joins br0, addresses from 192.0.2.200-192.0.2.209" in sh("solo5ctl", "doctor").stdout
    refused = run.fail(*ON_LAN, "-p", "8080:80", f"{GUESTS}/net.spt")
    assert refused.returncode == 125
    assert "port 8080/tcp cannot be published to NIC service: network lan joins bridge br0" in refused.stderr
    refused = run.fail(*ON_LAN, f"{GUESTS}/net.spt", "--gateway={net.service.gateway4}")
    assert "NIC service has no gateway in network lan" in refused.stderr
    made = bridge()
    ok("solo5ctl", "rm", "--force", task)
    assert bridge() == made


def test_a_guest_without_a_leased_address_has_one_of_its_own(lan: Outside, run: Runner, place: Files) -> None:
    place(SETTINGS, '[network.lan]\njoin = "br0"\n')
    refused = run.fail(*ON_LAN, f"{GUESTS}/net.spt", IPV4)
    assert refused.returncode == 125
    assert "NIC service has no leased address in network lan: expected no such placeholder" in refused.stderr
    task = run("net.spt", "--ipv4=192.0.2.77/24", options=ON_LAN)
    answers(lan, "192.0.2.77", "the LAN reaches it")
    assert (lease(task)["ipv4"], lease(task)["gateway4"]) == (None, None)
    assert "no leased address" in ok("solo5ctl", "inspect", task)
    systemctl("restart", f"solo5-task-{task}")
    answers(lan, "192.0.2.77", "also after a restart")


def test_an_update_with_a_pause_keeps_what_the_lan_has_learned(
    lan: Outside, place: Files, newer: str, declare: Declarations
) -> None:
    """Address and MAC: the other host makes no ARP request here, and would need one if they changed."""
    place(SETTINGS, f'[network.lan]\njoin = "br0"\n{POOL}')
    ok("systemctl", "start", declare("web", f"Memory=64M\nNetwork=service=lan\nArgument={IPV4}"))
    before, known_as = lease("web"), address("web")
    known = ("neighbour", "replace", known_as, "lladdr", str(before["mac"]), "dev", "eth0", "nud", "permanent")
    ok("ip", "-netns", lan.namespace, *known)
    answers(lan, known_as, "the LAN reaches it")
    refused = sh("solo5ctl", "update", "web", newer)
    assert "since it publishes no port that could be moved: expected --pause" in refused.stderr
    done = sh("solo5ctl", "update", "web", newer, "--pause", "--watch", "0", timeout=120)
    assert done.returncode == 0, done.stderr
    answers(lan, known_as, "the LAN reaches the new guest")
    assert inspect("web")["image"] == newer
    assert lease("web") == before


@pytest.mark.vm  # the kernel of a container's host may have no VLAN filtering
def test_guests_of_two_vlans_share_a_bridge_and_do_not_meet(machine: Machine, place: Files, run: Runner) -> None:
    """The cable is a trunk: the other host has a link in each VLAN. No guest is in VLAN 1, the bridge's default."""
    networks = "".join(f'[network.v{n}]\njoin = "br0"\nvlan = {n}\nipv4 = "10.0.{n}.0/24"\n' for n in (20, 30))
    place(SETTINGS, f'{networks}[network.lan]\njoin = "br0"\n')
    with cable(Outside()) as other, bridged(other, "vlan_filtering", "1"):
        for vlan in (20, 30):
            ok("bridge", "vlan", "add", "dev", "cable", "vid", str(vlan))
            ip = ("ip", "-netns", other.namespace)
            ok(*ip, "link", "add", "link", "eth0", "name", f"v{vlan}", "type", "vlan", "id", str(vlan))
            ok(*ip, "address", "add", f"10.0.{vlan}.1/24", "dev", f"v{vlan}")
            ok(*ip, "link", "set", f"v{vlan}", "up")
        before = ok("bridge", "vlan", "show", "dev", "cable"), bridge()
        tasks = {n: run("net.spt", IPV4, options=("--net", f"service=v{n},ip=10.0.{n}.7")) for n in (20, 30)}
        for vlan, task in tasks.items():
            answers(other, f"10.0.{vlan}.7", "its VLAN reaches it")
            [port] = json.loads(ok("bridge", "-json", "vlan", "show", "dev", str(lease(task)["tap"])))
            assert port["vlans"] == [{"vlan": vlan, "flags": ["PVID", "Egress Untagged"]}]
            entries = ok("bridge", "fdb", "show", "dev", str(lease(task)["tap"]))
            assert f"{lease(task)['mac']} vlan {vlan} sticky master br0 static" in entries
        untagged = run("net.spt", "--ipv4=192.0.2.77/24", options=ON_LAN)
        answers(other, "192.0.2.77", "the bridge's own VLAN")
        ok("ip", "-netns", other.namespace, "address", "add", "10.0.20.2/24", "dev", "v30")
        crossed = other.sh("ping", "-c2", "-W1", "-I", "v30", "10.0.20.7")
        assert crossed.returncode != 0, "a frame in VLAN 30 does not reach the guest in VLAN 20"
        for task in (*tasks.values(), untagged):
            ok("solo5ctl", "rm", "--force", task)
        assert (ok("bridge", "vlan", "show", "dev", "cable"), bridge()) == before
        refused = run.fail("--net", "service=off", f"{GUESTS}/net.spt")
        assert "network off does not exist" in refused.stderr
