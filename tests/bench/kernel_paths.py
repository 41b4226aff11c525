"""Round trips in the kernel alone: what the packet filter takes of them, without processes that are woken.

The guest is the network stack at the far end of a veth pair that is named as a tap, and one thread has the sockets of
both ends. So a packet goes there and back on one processor, and differences of a hundredth are seen that a round trip
by a tender hides in its spread.
"""

import os
import socket
import time
from contextlib import ExitStack
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from itertools import permutations
from pathlib import Path

from tests.bench.extent import extent
from tests.bench.figures import Report, times
from tests.bench.paths import nft, udp_socket
from tests.contract.netns import Outside, private_namespace, run

from solo5_systemd.base.names import DeviceName, NetworkName, TaskName
from solo5_systemd.network import nft_objects, nft_rules
from solo5_systemd.network.derived_addresses import bridge_mac
from solo5_systemd.network.model import (
    Lease,
    LeaseRecord,
    LeaseState,
    MacAddress,
    Network,
    PortRequest,
    Protocol,
    Reservation,
)
from solo5_systemd.network.nft_elements import Ruleset

TURNS, WINDOWS, ROUND_TRIPS = extent((30, 8, 250), (2, 1, 50))
"""Turns of each mode, and windows of each turn: the fastest of all counts, which other programs disturb least."""

OURS, TRACKED, BARE = "ours", "tracked", "bare"
ORDERS = list(permutations((OURS, TRACKED, BARE)))
"""`bare`: no table of nftables exists, so nothing tracks connections. `tracked`: the tables are there without their
hooks, so that the kernel tracks connections and no rule is traversed."""

PORT, PUBLISHED = 7, 7007
NETWORK = Network(
    name=NetworkName("default"),
    bridge="solo5-default",
    ipv4=IPv4Network("10.89.0.0/24"),
    gateway4=IPv4Address("10.89.0.1"),
    mtu=1500,
    masquerade=True,
)
LEASE = Lease(
    nic=DeviceName("service"),
    network=NETWORK.name,
    bridge=NETWORK.bridge,
    tap="s5-abcdefghijkl",
    ipv4=IPv4Interface("10.89.0.7/24"),
    gateway4=NETWORK.gateway4,
    mac=MacAddress("02:00:00:00:00:07"),
    mtu=1500,
)
PUBLISH = PortRequest(nic=LEASE.nic, host_port=PUBLISHED, port=PORT, protocol=Protocol.UDP)
RECORD = LeaseRecord(
    reservation=Reservation(task=TaskName("a"), leases=(LEASE,), ports=(PUBLISH,)),
    state=LeaseState.ATTACHED,
    expires=0,
)
RULESET = Ruleset(networks=(NETWORK,), records=(RECORD,))
DORMANT = "".join(f"\nadd table {family} {nft_objects.TABLE} {{ flags dormant; }}" for family in ("ip", "bridge"))
MODES = {OURS: "", TRACKED: DORMANT}


def measure(report: Report, _: object) -> None:
    """Add the figures of both paths."""
    processors = os.sched_getaffinity(0)
    with ExitStack() as stack:
        stack.enter_context(private_namespace())
        guest, outside = _guest(stack), Outside()
        stack.callback(outside.close)
        outside.ip("route", "add", "default", "via", outside.host)
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        os.sched_setaffinity(0, {min(processors)})
        stack.callback(os.sched_setaffinity, 0, processors)
        own = (str(LEASE.address), PORT)
        for name, client, published in (
            ("host to guest", None, own),
            ("outside to published port", outside, (outside.host, PUBLISHED)),
        ):
            found: dict[str, list[float]] = {OURS: [], TRACKED: [], BARE: []}
            for turn in range(TURNS):
                for mode in ORDERS[turn % len(ORDERS)]:
                    _set(mode)
                    found[mode].append(_round_trip(guest, client, published if mode == OURS else own))
            _set(BARE)
            for against, words in ((BARE, ""), (TRACKED, ", rules alone")):
                what = f"{name} in the kernel, round trip by UDP{words}"
                report.add(times(what, found[OURS], found[against], unit="µs", middle=min))


def _guest(stack: ExitStack) -> Outside:
    """Make the bridge, and a guest on a port of it that is set up as a tap is."""
    bridge, gateway = NETWORK.bridge, f"{NETWORK.gateway4}/24"
    guest = Outside("guest")
    stack.callback(guest.close, LEASE.tap)
    for line in (
        f"ip link add {bridge} address {bridge_mac(NETWORK.name)} type bridge mcast_snooping 0",
        f"ip address add {gateway} dev {bridge}",
        f"ip link set {bridge} up",
        "ip address flush dev guest-in",
        "ip link set guest-in down",
        f"ip link set guest-in name {LEASE.tap} master {bridge}",
        f"ip link set {LEASE.tap} up",
        f"bridge link set dev {LEASE.tap} hairpin on learning off",
        f"bridge fdb replace {LEASE.mac} dev {LEASE.tap} master static",
        f"ip neighbour replace {LEASE.address} lladdr {LEASE.mac} dev {bridge} nud permanent",
    ):
        run(*line.split())
    for line in (
        "link set guest-out down",
        "address flush dev guest-out",
        f"link set guest-out address {LEASE.mac} up",
        f"address add {LEASE.ipv4} dev guest-out",
        f"route add default via {NETWORK.gateway4}",
    ):
        guest.ip(*line.split())
    # With retries: its port forwards when the kernel has seen the carrier.
    run("ping", "-c1", "-w10", str(LEASE.address))
    return guest


def _round_trip(guest: Outside, client: Outside | None, address: tuple[str, int]) -> float:
    """Return the microseconds of a datagram there and back, in the fastest window."""
    with ExitStack() as stack:
        serving, asking = udp_socket(stack, guest), udp_socket(stack, client)
        serving.bind(("0.0.0.0", PORT))
        asking.connect(address)
        asking.send(b"x")
        serving.connect(serving.recvfrom(1)[1])
        return min(_window(asking, serving) for _ in range(WINDOWS)) / ROUND_TRIPS * 1e6


def _window(asking: socket.socket, serving: socket.socket) -> float:
    begun = time.perf_counter()
    for _ in range(ROUND_TRIPS):
        asking.send(b"x")
        serving.recv(1)
        serving.send(b"x")
        asking.recv(1)
    return time.perf_counter() - begun


def _set(mode: str) -> None:
    nft(nft_rules.remove(owned=False) if mode == BARE else nft_rules.replace(RULESET, owned=False) + MODES[mode])
