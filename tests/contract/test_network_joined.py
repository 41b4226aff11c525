"""Networks that join an existing bridge: reach, addresses, VLANs, attacks, repair; and the bridge stays as it is."""

import asyncio
import json
import signal
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import aclosing, closing
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address, IPv6Interface, IPv6Network
from pathlib import Path
from typing import Any

import pytest
from tests.contract.guest import (
    ADVERT,
    ALL_NODES,
    BROADCAST,
    FRAGMENT,
    ICMPV6,
    NOWHERE,
    REDIRECT,
    ROUTER_ADVERT,
    ROUTER_SOLICIT,
    UDP,
    Guest,
    _sum,
    _udp,
    datagram,
    multicast,
)
from tests.contract.netns import Outside, link, run
from tests.contract.netservice import Client, Pid1, Service, host_state, nic, udp, until
from tests.contract.sockets import Inbox, arrived, ask_udp, bound, next_at, wire
from tests.contract.test_network_ipv6 import MLD_QUERY, MLD_REPORT
from tests.contract.test_network_policy import FORWARD, heard
from tests.contract.test_network_sleep import CONT, STOP, UNIT, WEB, Sleeper, asleep, awake

from solo5_systemd.base.errors import HostError, InvalidRequestError, TakenError
from solo5_systemd.base.names import TaskName
from solo5_systemd.network.derived_addresses import slaac_address
from solo5_systemd.network.model import Lease

IGMP = 2

PEER = IPv4Address("192.168.1.2")
LAN = '[network.lan]\njoin = "br0"\n'
RANGE = 'ipv4 = "192.168.1.0/24"\n'
POOL = f'{LAN}{RANGE}pool = "192.168.1.200-192.168.1.201"\n'
ROUTER, PEER6 = IPv6Address("fe80::2"), IPv6Address("2001:db8:5::2")
PREFIX = f'{LAN}ipv6 = "2001:db8:5::/64"\ngateway6 = "{ROUTER}"\n'
POOL6 = f'{PREFIX}pool6 = "2001:db8:5::200-2001:db8:5::201"\n'
STRANGER = bytes.fromhex("020000000099")


class Lan:
    """The bridge br0 of others, with the host's 192.168.1.1 and a machine behind a port of it, 192.168.1.2."""

    def __init__(self, *options: str) -> None:
        self.machine = Outside("lan", "192.168.1.9", str(PEER))
        # A random one may begin with fe, as those of taps do, and be higher: the bridge would take the tap's.
        run("ip", "link", "set", "lan-in", "address", "02:00:00:00:00:05")
        run("ip", "address", "flush", "dev", "lan-in")
        self.make(*options)

    def make(self, *options: str) -> None:
        run("ip", "link", "add", "br0", "type", "bridge", *options)
        run("ip", "link", "set", "lan-in", "master", "br0")
        run("ip", "address", "add", "192.168.1.1/24", "dev", "br0")
        run("ip", "link", "set", "br0", "up")

    def delete(self) -> None:
        run("ip", "link", "del", "br0")

    def wire(self) -> socket.socket:
        """Return a socket that receives every frame that reaches the machine."""
        with self.machine.entered():
            return wire("lan-out")

    def close(self) -> None:
        if link("br0"):
            self.delete()
        self.machine.close()


@pytest.fixture
def lan(namespace: None) -> Iterator[Lan]:
    lan = Lan()
    yield lan
    lan.close()


def changes(before: dict[str, object]) -> dict[str, object]:
    """Return what differs from an earlier state."""
    return {key: value for key, value in state().items() if value != before[key]}


def state() -> dict[str, object]:
    """Return all that the service must not change: the bridge, its other port, and the host's sysctls and addresses."""
    links = [_stable(link(name)) for name in ("br0", "lan-in")]
    sysctls = {
        str(path): path.read_text()
        for directory in ("ipv4", "ipv6", "bridge")
        for path in sorted(Path(f"/proc/sys/net/{directory}").rglob("*"))
        if path.is_file()
        and path.stat().st_mode & 0o200
        and "/s5-" not in str(path)
        and path.name not in ("flush", "stable_secret")
    }
    addresses = [(each["ifname"], each["addr_info"]) for each in json.loads(run("ip", "-j", "-4", "address"))]
    vlans = [each for each in json.loads(run("bridge", "-j", "vlan")) if not each["ifname"].startswith("s5-")]
    kept = [each for each in addresses if not each[0].startswith("s5-")]
    named = {f"{each['ifname']}.{key}": value for each in links for key, value in _flat(each)}
    return {**named, "sysctls": sysctls, "addresses": kept, "vlans": vlans, "routes": run("ip", "-4", "route")}


def _flat(of: dict[str, Any]) -> Iterator[tuple[str, object]]:
    for key, value in of.items():
        yield from _flat(value) if isinstance(value, dict) else [(key, value)]


def _stable(of: dict[str, Any]) -> dict[str, Any]:
    """Return a link without its timers, and without what the kernel has computed of all ports (TSO, above 64 KiB)."""
    text = json.dumps(of)
    found: dict[str, Any] = json.loads(
        text,
        object_hook=lambda each: {
            k: v for k, v in each.items() if "timer" not in k and k not in ("tso_max_size", "fdb_n_learned")
        },
    )
    return found


async def leased(client: Client, task: str = "a", ip: str | None = None, network: str = "lan") -> Lease:
    return (await client.have(task, nics=(nic("service", network, ip),))).leases[0]


async def calls(lan: Lan, guest: Guest) -> None:
    """Send a datagram from the machine on the LAN to the guest and back, and from the guest to the machine."""
    await guest.resolve(PEER)
    with lan.machine.entered():
        client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        listener = bound("0.0.0.0", 7)
    with closing(client), closing(listener):
        client.setblocking(False)
        client.sendto(b"to the guest", (str(guest.ip), 7777))
        assert await next_at(client) == (b"TO THE GUEST", (str(guest.ip), 7777))
        guest.send(guest.ipv4(await guest.resolve(PEER), PEER, UDP, _udp(4000, 7, b"to the LAN")))
        assert await next_at(listener) == (b"to the LAN", (str(guest.ip), 4000))


@pytest.mark.parametrize("mtu", ["1500", "9000"])
async def test_a_guest_is_a_machine_of_the_lan_and_its_bridge_stays_as_it_is(
    service: Service, lan: Lan, mtu: str
) -> None:
    lan.machine.ip("link", "set", "lan-out", "mtu", mtu)
    run("ip", "link", "set", "lan-in", "mtu", mtu)  # of which the bridge takes its own
    before = state()
    async with service.running(POOL + 'gateway4 = "192.168.1.1"\n') as client:
        lease = await leased(client)
        assert str(lease.ipv4) in ("192.168.1.200/24", "192.168.1.201/24")
        assert (str(lease.gateway4), lease.mtu, lease.bridge) == ("192.168.1.1", int(mtu), "br0")
        port = link(lease.tap)
        assert (port["master"], port["mtu"]) == ("br0", int(mtu))
        assert changes(before) == {}
        async with Guest(lease) as guest:
            await calls(lan, guest)
        assert run("nft", "list", "table", "ip", "solo5").count("elements") == 1, "its frames within the bridge alone"
        assert changes(before) == {}
        other = await leased(client, "b")
        with pytest.raises(TakenError, match=r"network lan has no free address .* all of 192.168.1.200-192.168.1.201"):
            await leased(client, "c")
        await client.drop("a")
        await client.drop("b")
        assert not link(other.tap)
    assert changes(before) == {}


async def test_a_job_requests_its_address_where_there_is_no_pool(service: Service, lan: Lan) -> None:
    """Which it cannot have besides: tests/fast/network/test_joined.py."""
    async with service.running(LAN + RANGE + 'gateway4 = "192.168.1.254"\n') as client:
        with pytest.raises(InvalidRequestError, match="requests no address in network lan, which has no pool"):
            await leased(client)
        with pytest.raises(TakenError, match=r"192.168.1.1 for NIC service is taken by this host"):
            await leased(client, ip="192.168.1.1")
        async with Guest(await leased(client, ip="192.168.1.77")) as guest:
            await calls(lan, guest)
        with pytest.raises(TakenError, match="taken by task a"):
            await leased(client, "b", ip="192.168.1.77")


async def test_a_guest_without_a_leased_address_uses_dhcp_and_what_it_gets(service: Service, lan: Lan) -> None:
    async with service.running(LAN) as client:
        with pytest.raises(InvalidRequestError, match="network lan, which leases no IPv4 addresses"):
            await leased(client, ip="192.168.1.77")
        lease = await leased(client)
        assert (lease.ipv4, lease.gateway4) == (None, None)
        assert (await client.reservations())[0].leases == (lease,)
        assert (await client.endpoints())[TaskName("a")].nics[0].address == ""
        with lan.machine.entered():
            server = bound("0.0.0.0", 67)
        async with Guest(lease) as guest:
            with closing(server):
                asked = _udp(68, 67, b"DISCOVER")
                guest.send(guest.ipv4(BROADCAST, IPv4Address("255.255.255.255"), UDP, asked))
                assert (await next_at(server))[0] == b"DISCOVER"
            guest.ip = IPv4Address("192.168.1.77")
            await calls(lan, guest)


async def test_attacks_of_a_guest_do_not_leave_its_tap(service: Service, lan: Lan) -> None:
    """What is proper follows each on the same way: what has not arrived on the LAN by then was dropped."""
    run("ip", "link", "set", "br0", "type", "bridge", "group_fwd_mask", "0xfff8")
    async with service.running(POOL) as client:
        await _attack(await leased(client), lan, known=True)
        await client.drop("a")
        service.configure(LAN)
        await _attack(await leased(client), lan, known=False)


async def _attack(lease: Lease, lan: Lan, *, known: bool) -> None:
    bridge = bytes.fromhex(link("br0")["address"].replace(":", ""))
    async with Guest(lease) as guest:
        guest.ip = lease.address or IPv4Address("192.168.1.77")
        there = await guest.resolve(PEER)
        other = IPv4Address("192.168.1.3")
        with lan.wire() as wire:
            own = guest.ipv4(there, PEER, UDP, _udp(4000, 7, b"proper"))
            stranger = bytes.fromhex("020000000099")
            attacks = {
                "as the bridge": own[:6] + bridge + own[12:],
                "as the machine": own[:6] + there + own[12:],
                "as a stranger": own[:6] + stranger + own[12:],
                "ARP of a stranger's MAC": guest.arp(2, BROADCAST, PEER, mac=stranger),
                "BPDU": b"\x01\x80\xc2\0\0\0" + guest.mac + b"\0\x26\x42\x42\x03" + bytes(35),
                "LACP": b"\x01\x80\xc2\0\0\x02" + guest.mac + b"\x88\x09" + bytes(46),
                "LLDP": b"\x01\x80\xc2\0\0\x0e" + guest.mac + b"\x88\xcc" + bytes(46),
                "IPv4 to a bridge": b"\x01\x80\xc2\0\0\x03" + own[6:],
                "tagged": own[:12] + b"\x81\0\0\x14" + own[12:],
                "tagged for priority": own[:12] + b"\x81\0\xe0\0" + own[12:],
                "tagged by a provider": own[:12] + b"\x88\xa8\0\x14" + own[12:],
                "tagged twice": own[:12] + b"\x81\0\0\x01\x81\0\0\x14" + own[12:],
                "IPv6": there + guest.mac + b"\x86\xdd" + bytes(46),
                "DHCP server": guest.ipv4(BROADCAST, IPv4Address("255.255.255.255"), UDP, _udp(67, 68, b"OFFER")),
                "query of groups": guest.ipv4(
                    b"\1\0\x5e\0\0\1", IPv4Address("224.0.0.1"), IGMP, b"\x11\x64\xee\x9b" + bytes(4)
                ),
                "fragment": guest.ipv4(there, PEER, UDP, _udp(4000, 7, b"part"), fragment=0x2000),
                "pause": b"\x01\x80\xc2\0\0\x01" + guest.mac + b"\x88\x08" + bytes(46),
            }
            if known:
                attacks |= {
                    "another address": guest.ipv4(there, PEER, UDP, _udp(4000, 7, b"forged"), source=other),
                    "DHCP": guest.ipv4(BROADCAST, PEER, UDP, _udp(68, 67, b"DISCOVER"), source=IPv4Address(0)),
                    "ARP of another address": guest.arp(2, BROADCAST, PEER, ip=other),
                    "ARP of the host": guest.arp(2, BROADCAST, PEER, ip=IPv4Address("192.168.1.1")),
                }
            for _ in range(3):
                for name, attack in attacks.items():
                    guest.send(attack + f"<{name}>".encode())
            guest.send(own)
            inbox = Inbox(wire)
            await until(lambda: own[42:48] in [frame[42:48] for frame in inbox()])
            got = inbox()
            ours = [frame for frame in got if frame[:6] != guest.mac and frame[6:12] != there]
            assert {name for name in attacks for frame in got if f"<{name}>".encode() in frame} == set()
            assert {frame[6:12] for frame in ours} <= {guest.mac, bridge}
            assert {frame[12:14] for frame in ours if frame[6:12] == guest.mac} <= {b"\x08\0", b"\x08\x06"}


GROUPS, RECORDS = 6000, 150
"""Groups of which a guest becomes a member: more than a bridge has room for (4096), and those of one report."""


async def test_a_guest_changes_neither_spanning_tree_nor_multicast_snooping(service: Service, lan: Lan) -> None:
    def snooping() -> tuple[object, object]:
        data = link("br0")["linkinfo"]["info_data"]
        return data["mcast_snooping"], data["root_id"]

    async with service.running(POOL) as client, Guest(await leased(client)) as guest:
        await calls(lan, guest)
        before = snooping()
        run("ip", "link", "set", "br0", "type", "bridge", "stp_state", "1")
        root = b"\0\0\2\0\0\0\0\1"
        superior = bytes(5) + root + bytes(4) + root + b"\x80\1\0\0\x14\0\2\0\x0f\0"
        guest.send(b"\x01\x80\xc2\0\0\0" + guest.mac + b"\0\x26\x42\x42\3" + superior)
        [network] = [each for each in await client.networks() if each.name == "lan"]
        assert network.dropped.by_rule()["unsafe"] == 1, "it has passed the rules, and nothing else follows them"
        assert snooping() == before
        run("ip", "link", "set", "br0", "type", "bridge", "stp_state", "0")
        await calls(lan, guest)
        for first in range(0, GROUPS, RECORDS):
            records = [b"\4\0\0\0\xef\1" + struct.pack("!H", first + number) for number in range(RECORDS)]
            _igmp(guest, "224.0.0.22", b"\x22\0", struct.pack("!HH", 0, RECORDS) + b"".join(records))
        _igmp(guest, "224.0.0.106", b"\x30\x14", b"\0\x7d\0\2")  # as a multicast router (RFC 4286)
        await calls(lan, guest)
        [found] = json.loads(run("bridge", "-j", "-d", "mdb", "show", "dev", "br0"))
        assert snooping() == before
        assert 0 < len([each for each in found["mdb"] if each["port"] == guest.tap]) < 100
        assert guest.tap not in json.dumps(found["router"])


def _igmp(guest: Guest, group: str, head: bytes, rest: bytes) -> None:
    to = IPv4Address(group)
    body = head + _sum(head + b"\0\0" + rest) + rest
    guest.send(guest.ipv4(b"\1\0\x5e" + to.packed[1:], to, IGMP, body))


async def test_a_guest_cannot_request_the_mac_of_another_machine(service: Service, lan: Lan) -> None:
    with lan.machine.entered(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"here I am", ("192.168.1.1", 7))
    machine = json.loads(lan.machine.ip("-j", "link", "show", "lan-out"))[0]["address"]
    async with service.running(POOL) as client:
        for mac in (machine, link("br0")["address"]):
            with pytest.raises(TakenError, match=f"MAC address {mac} for NIC service is in use on bridge br0"):
                await client.reserve(TaskName("a"), (nic("service", "lan", mac=mac),), ())
        mine = "02:00:5e:00:00:07"
        assert (await client.have("a", nics=(nic("service", "lan", mac=mine),))).leases[0].mac == mine


ENTRIES = 20_000
FULL_S = 5
"""Seconds: many times what it takes, and less than two lists of all entries take."""


async def test_a_machine_of_the_lan_that_fills_the_bridge_with_macs_delays_no_start(service: Service, lan: Lan) -> None:
    with lan.machine.entered():
        sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    with closing(sender):
        sender.bind(("lan-out", 0))
        for number in range(ENTRIES):
            sender.send(b"\xff" * 6 + b"\x02" + struct.pack(">IB", number, 1) + b"\x88\xb5" + bytes(46))
    assert run("bridge", "fdb", "show", "br", "br0").count("\n") > ENTRIES // 2
    async with service.running(POOL) as client:
        begun = time.monotonic()
        with pytest.raises(TakenError, match="is in use on bridge br0"):
            await client.reserve(TaskName("a"), (nic("service", "lan", mac="02:00:00:00:07:01"),), ())
        await client.have("a", nics=(nic("service", "lan", mac="02:00:5e:00:00:07"),))
        await client.drop("a")
        assert time.monotonic() - begun < FULL_S


async def test_a_machine_of_the_lan_does_not_take_the_frames_of_a_guest(service: Service, lan: Lan) -> None:
    """With the guest's MAC as its source: an entry of a learning bridge would move to the machine's port."""
    async with service.running(POOL) as client:
        lease = await leased(client)
        async with Guest(lease) as guest:
            await calls(lan, guest)
            with lan.wire() as wire:
                wire.send(guest.arp(1, BROADCAST, IPv4Address("192.168.1.1")))
            entries = json.loads(run("bridge", "-j", "fdb", "show", "br", "br0"))
            [entry] = [each for each in entries if each["mac"] == lease.mac]
            assert entry["ifname"] == lease.tap
            await calls(lan, guest)


async def test_what_is_unusable_is_refused_before_anything_is_made(service: Service, lan: Lan) -> None:
    run("ip", "link", "add", "br9", "type", "bridge")
    cases = {
        "br8": "bridge br8 of network lan does not exist",
        "lan-in": "link lan-in of network lan is of kind veth: expected a Linux bridge",
        "lo": "link lo of network lan is a physical device",
        "br9": "bridge br9 of network lan is down",
        'br0"\nvlan = 20 #': r"bridge br0 of network lan does not filter VLANs \(vlan_filtering 0\)",
    }
    async with service.running() as client:
        for name, reason in cases.items():
            service.configure(f'[network.lan]\njoin = "{name}"\n')
            with pytest.raises(HostError, match=reason):
                await client.reserve(TaskName("a"), (nic("service", "lan"),), ())
        assert not list(service.state.rglob("*.json"))
    run("ip", "link", "del", "br9")


async def test_a_full_bridge_has_no_port_for_a_guest(service: Service, lan: Lan, tmp_path: Path) -> None:
    """All its ports count: it has one already, 1021 are added, then a guest takes the last."""
    batch = tmp_path / "batch"
    pairs = [f"link add d{n} master br0 group 7 type veth peer name e{n}\n" for n in range(511)]
    others = [f"link set e{n} master br0\n" for n in range(510)]
    batch.write_text("".join([*pairs, *others]))
    run("ip", "-batch", str(batch))
    async with service.running(LAN) as client:
        await leased(client)
        with pytest.raises(HostError, match="the kernel refused to change tap s5-.*: Exchange full"):
            await leased(client, "b")
        await client.drop("b")
    run("ip", "link", "delete", "group", "7")


async def test_taps_are_put_back_on_a_bridge_that_its_owner_makes_again(service: Service, lan: Lan) -> None:
    async with service.running(POOL) as client, service.client() as listener, aclosing(listener.repairs()) as repairs:
        lease = await leased(client)
        next_repair = asyncio.ensure_future(anext(repairs))
        async with Guest(lease) as guest:
            await calls(lan, guest)
            lan.delete()
            await until(lambda: "master" not in link(lease.tap))
            assert not link("br0"), "it is not made by the service"
            lan.make()
            before = state()
            await until(lambda: link(lease.tap).get("master") == "br0")
            guest.frames.clear()
            await calls(lan, guest)
            assert changes(before) == {}
            repair = await asyncio.wait_for(next_repair, 30)
            assert repair.tasks == ("a",)
            assert f"tap {lease.tap} was missing, down or not on its bridge" in repair.what
            run("ip", "link", "set", lease.tap, "nomaster")
            await until(lambda: link(lease.tap).get("master") == "br0")
            guest.frames.clear()
            await calls(lan, guest)
    assert link("br0")


async def test_a_bridge_that_does_not_come_back_is_not_made_and_its_guests_can_be_released(
    service: Service, lan: Lan
) -> None:
    async with service.running(POOL) as client:
        await leased(client)
        lan.delete()
        service.kill()
        await service.restart()
        with pytest.raises(HostError, match="bridge br0 of network lan does not exist"):
            await leased(client, "b")
    assert not link("br0")


@pytest.mark.parametrize(
    ("settings", "by_ipv6"),
    [(POOL, False), (POOL6, True), (f"{LAN}ipv6 = true\n", True)],
    ids=["leased", "IPv6, leased", "IPv6, any address"],
)
async def test_a_restart_and_a_damaged_record_leave_guests_and_bridge_as_they_are(
    service: Service, machine: Lan, settings: str, by_ipv6: bool
) -> None:
    before = state()
    async with service.running(settings) as client:
        wanted = await client.have("a", nics=(nic("service", "lan"),))
        attached, rules = state(), host_state()
        for damaged in (False, True):
            service.kill()
            if damaged:
                (service.state / "tasks/a.json").write_bytes(b"\xff\xfe")
            await service.restart()
            assert (await client.reservations()) == (wanted,)
            assert (changes(attached), host_state()) == ({}, rules)
        [lease] = wanted.leases
        if by_ipv6:
            async with Guest(lease if lease.ipv6 else _addressed(lease)) as guest6:
                await guest6.pinged6(PEER6, b"still")
        else:
            async with Guest(lease) as guest:
                guest.ip = lease.address or IPv4Address("192.168.1.77")
                await calls(machine, guest)
    assert changes(before) == {}


@pytest.mark.parametrize("families", [{"ip"}, {"ip", "ip6"}], ids=["IPv4", "both families"])
async def test_a_joined_network_next_to_one_of_the_service_forwards_nothing(
    service: Service, machine: Lan, families: set[str]
) -> None:
    """What the network of the service needs of the host begins and ends with it, and not with the joined one."""
    before, six = state(), "ip6" in families
    forwarding = Path("/proc/sys/net/ipv4/conf/lo/forwarding")

    def drops() -> set[str]:
        tables = [each for each in ("ip", "ip6") if f"table {each} solo5\n" in run("nft", "list", "tables")]
        return {each for each in tables if "drop" in run("nft", "list", "chain", each, "solo5", "foreign")}

    settings = f"{POOL}{POOL6.removeprefix(LAN) if six else ''}[network.default]\nipv6 = {str(six).lower()}\n"
    async with service.running(settings) as client, Guest(await leased(client)) as guest:
        assert forwarding.read_text() == "0\n"
        own = await client.lease("b", udp(5353))
        assert forwarding.read_text() == "1\n"
        assert str(own.ipv4).startswith("10.153.0.")
        assert own.address6 is None or own.address6 not in IPv6Interface("2001:db8:5::/64").network
        await calls(machine, guest)
        assert drops() == families
        await client.drop("b")
        assert (FORWARD.read_text(), forwarding.read_text(), changes(before)) == ("0\n", "0\n", {})
        assert not drops()
        assert "table ip6" not in run("nft", "list", "tables")
        await calls(machine, guest)
        if six:
            await guest.pinged6(PEER6, b"alone")


async def test_isolated_guests_reach_the_lan_and_not_each_other(service: Service, bridge_nf: None, lan: Lan) -> None:
    async with (
        service.running(f"{POOL}isolated = true\n") as client,
        Guest(await leased(client)) as a,
        Guest(await leased(client, "b")) as b,
    ):
        await calls(lan, a)
        await calls(lan, b)
        a.send(a.udp(b.mac, b.ip, 7777, b"to b"))
        await calls(lan, a)
        b.send(b.udp(await b.resolve(PEER), PEER, 7777, b"after"))
        await calls(lan, b)
        assert [each for each in heard(b) if each.startswith(b"to b")] == []


async def test_ipv6_is_open_where_it_is_set_but_for_routers_and_dhcp_servers(service: Service, lan: Lan) -> None:
    async with service.running(f"{LAN}ipv6 = true\n") as client, Guest(await leased(client)) as guest:
        guest.ip = IPv4Address("192.168.1.77")
        with lan.wire() as wire:
            frames_of = {
                b"neighbour": (58, b"\x87\0\0\0\0\0\0\0"),
                b"router": (58, b"\x86\0\0\0\0\0\0\0"),
                b"redirect": (58, b"\x89\0\0\0\0\0\0\0"),
                b"datagram": (17, struct.pack("!HHHH", 1, 2, 24, 0)),
                b"DHCPv6": (17, struct.pack("!HHHH", 547, 546, 24, 0)),
            }
            for word, (kind, head) in frames_of.items():
                guest.send(_ipv6(guest, kind, head + word.ljust(16, b".")))
            guest.send(_ipv6(guest, 59, b"as a stranger...", source=b"\x02\0\0\0\0\x99"))
            await calls(lan, guest)
            got = b"".join(arrived(wire))
            assert [word for word in frames_of if word in got] == [b"neighbour", b"datagram"]
            assert b"as a stranger" not in got


def _ipv6(guest: Guest, kind: int, body: bytes, source: bytes = b"") -> bytes:
    ends = bytes.fromhex("fe80" + "00" * 13 + "07" + "ff02" + "00" * 13 + "01")
    head = struct.pack("!IHBB", 6 << 28, len(body), kind, 255)
    return guest.frame(b"\x33\x33\0\0\0\1", 0x86DD, head + ends + body, source=source)


@pytest.fixture
def machine(lan: Lan) -> Lan:
    """The LAN, whose machine has two addresses of IPv6."""
    for address in (f"{PEER6}/64", f"{ROUTER}/64"):
        lan.machine.ip("address", "add", address, "dev", "lan-out", "nodad")
    return lan


async def test_a_guest_has_an_ipv6_address_of_the_lan_and_changes_nothing_on_the_host(
    service: Service, machine: Lan
) -> None:
    before = state()
    async with service.running(POOL6) as client:
        lease = await leased(client)
        assert str(lease.ipv6) in ("2001:db8:5::200/64", "2001:db8:5::201/64")
        assert (lease.gateway6, lease.ipv4) == (ROUTER, None)
        async with Guest(lease) as guest:
            await guest.pinged6(PEER6, b"to the LAN")
            with machine.machine.entered():
                asking = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
            assert await ask_udp(str(guest.ip6), 7, sock=asking) == b"HELLO"
        assert changes(before) == {}, "no forwarding, and no address at the bridge"
        assert "table ip6" not in run("nft", "list", "tables")
        assert len({(await leased(client, task)).ipv6 for task in ("a", "b")}) == 2
        with pytest.raises(TakenError, match=r"all of 2001:db8:5::200-2001:db8:5::201 are taken"):
            await leased(client, "c")


@pytest.mark.parametrize("known", [True, False], ids=["leased", "any address"])
async def test_attacks_of_a_guest_by_ipv6_do_not_leave_its_tap(service: Service, machine: Lan, known: bool) -> None:
    async with service.running(POOL6 if known else f"{LAN}ipv6 = true\n") as client:
        lease = await leased(client)
        await _attack6(lease if known else _addressed(lease), machine, known=known)


def _addressed(lease: Lease) -> Lease:
    assert (lease.ipv6, lease.gateway6) == (None, None)
    return replace(lease, ipv6=IPv6Interface("2001:db8:5::200/64"), gateway6=ROUTER)


async def _attack6(lease: Lease, machine: Lan, *, known: bool) -> None:
    """Send each frame, and then what is proper: what has not arrived at the machine by then was dropped."""
    other = IPv6Address("2001:db8:5::3")
    async with Guest(lease) as guest:
        there = await guest.resolve(guest.gateway6)

        def said(to: IPv6Address, word: bytes, *, source: IPv6Address | None = None) -> bytes:
            return guest.ipv6(there, to, UDP, datagram(source or guest.ip6, to, 9, 7, word), source=source)

        def announced(kind: int, body: bytes, *, source: IPv6Address | None = None) -> bytes:
            return guest.icmp6(multicast(ALL_NODES), ALL_NODES, kind, body, source=source)

        own = said(PEER6, b"proper")
        proper = {
            "link-local address": said(ROUTER, b"a neighbour", source=guest.link_local),
            "solicitation": guest.solicit(PEER6),
            "advertisement": guest.advertise(guest.ip6),
            "duplicates of its own": guest.solicit(guest.ip6, source=NOWHERE),
            "looks for a router": announced(ROUTER_SOLICIT, bytes(4), source=NOWHERE),
            "joins a group": announced(MLD_REPORT, bytes(4), source=NOWHERE),
        }
        by_address = {
            "another address": said(PEER6, b"forged", source=other),
            "the router's address": said(PEER6, b"forged router", source=ROUTER),
            "solicitation of another": guest.solicit(PEER6, source=other),
            "advertisement of another": guest.advertise(other),
            "advertisement of the router": guest.advertise(ROUTER, source=ROUTER),
            "duplicates of another": guest.solicit(other, source=NOWHERE),
        }
        attacks = {
            "as a stranger": own[:6] + STRANGER + own[12:],
            "solicitation with another MAC": guest.solicit(PEER6, mac=STRANGER),
            "advertisement with another MAC": guest.advertise(guest.ip6, mac=STRANGER),
            "the machine's, with another MAC": guest.advertise(PEER6, mac=STRANGER, source=PEER6),
            "advertisement with two options": announced(
                ADVERT, b"\x60\0\0\0" + guest.ip6.packed + b"\2\1" + guest.mac + b"\2\1" + STRANGER
            ),
            "router": announced(ROUTER_ADVERT, bytes(12), source=guest.link_local),
            "redirect": announced(REDIRECT, bytes(4) + other.packed + PEER6.packed, source=guest.link_local),
            "query of groups": announced(MLD_QUERY, bytes(20), source=guest.link_local),
            "DHCPv6": guest.ipv6(there, PEER6, UDP, datagram(guest.ip6, PEER6, 547, 546, b"REPLY")),
            "fragment": guest.ipv6(there, PEER6, FRAGMENT, bytes([ICMPV6, 0, 0, 1, 0, 0, 0, 7]) + bytes(8)),
            **(by_address if known else {}),
        }
        passing = proper if known else proper | by_address
        with machine.wire() as heard:
            for frame in (*attacks.values(), *passing.values(), own):
                guest.send(frame)
            await guest.pinged6(PEER6, b"after all of them")
            got = arrived(heard)
        assert {name for name, frame in attacks.items() if frame in got} == set()
        assert {name for name, frame in passing.items() if frame in got} == passing.keys()
        assert own in got


async def test_fragments_of_ipv6_pass_where_the_network_permits_them(service: Service, machine: Lan) -> None:
    async with service.running(f"{POOL6}fragments = true\n") as client, Guest(await leased(client)) as guest:
        there = await guest.resolve(guest.gateway6)
        part = guest.ipv6(there, PEER6, FRAGMENT, bytes([ICMPV6, 0, 0, 1, 0, 0, 0, 7]) + bytes(8))
        with machine.wire() as heard:
            guest.send(part)
            await guest.pinged6(PEER6, b"after it")
            assert part in arrived(heard)


async def test_a_question_for_an_address_with_the_prefix_of_the_lan_wakes(
    service: Service, lan: Lan, manager: Pid1
) -> None:
    async with service.running(f"{POOL}ipv6 = true\n") as client:
        lease = await leased(client, str(WEB))
        manager.begin(UNIT)
        async with Sleeper(lease) as guest:
            manager.on_signal = {signal.SIGSTOP: guest.stop, signal.SIGCONT: guest.go_on}
            with closing(lan.wire()) as wire:
                for address in (guest.link_local, slaac_address(IPv6Network("2001:db8:5::/64"), lease.mac)):
                    await client.sleep(WEB)
                    for target in (address + (1 << 24), address):  # both of one group
                        assert await asleep(client)
                        question = guest.solicit(target, source=ROUTER, mac=STRANGER)
                        wire.send(question[:6] + STRANGER + question[12:])
                    await awake(client)
                    assert manager.signals[-2:] == [STOP, CONT]
        manager.on_signal = {}
