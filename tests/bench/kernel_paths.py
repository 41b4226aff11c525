"""Round trips in the kernel alone: what the packet filter takes of them, without processes that are woken.

The guest is the network stack at the far end of a veth pair that is named as a tap, and one thread has the sockets of
both ends. So a packet goes there and back on one processor, and differences of a hundredth are seen that a round trip
by a tender hides in its spread. `bare` and `tracked` are those of `tests/bench/paths.py`.
"""

import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from pathlib import Path

from tests.bench.extent import extent
from tests.bench.figures import Figure, spread
from tests.bench.paths import BARE, ORDERS, OURS, TRACKED, nft
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
PORTS = tuple(
    PortRequest(nic=LEASE.nic, host_port=PUBLISHED, port=PORT, protocol=each) for each in (Protocol.UDP, Protocol.TCP)
)
RECORD = LeaseRecord(
    reservation=Reservation(task=TaskName("a"), leases=(LEASE,), ports=PORTS),
    state=LeaseState.ATTACHED,
    expires=0,
)
RULESET = Ruleset(networks=(NETWORK,), records=(RECORD,))
DORMANT = "".join(f"\nadd table {family} {nft_objects.TABLE} {{ flags dormant; }}" for family in ("ip", "bridge"))
MODES = {OURS: "", TRACKED: DORMANT}


@dataclass(frozen=True)
class Way:
    """A client's namespace, and where it finds the guest."""

    client: Outside | None
    address: tuple[str, int]


def figures() -> Iterator[Figure]:
    """Yield the figures of both paths, by UDP and TCP."""
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
        for name, ours, floor in (
            ("host to guest", Way(None, own), Way(None, own)),
            ("outside to published port", Way(outside, (outside.host, PUBLISHED)), Way(outside, own)),
        ):
            for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
                yield from _compared(name, kind, guest, {OURS: ours, TRACKED: floor, BARE: floor})


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
    run(
        "ping", "-c1", "-w10", str(LEASE.address)
    )  # with retries: its port forwards when the kernel has seen the carrier
    return guest


class RoundTrips:
    """Connected sockets of a client and of the guest."""

    def __init__(self, kind: int, guest: Outside, way: Way) -> None:
        with guest.entered():
            serving = socket.socket(socket.AF_INET, kind)
        serving.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        serving.bind(("0.0.0.0", PORT))
        with ExitStack() as inside:
            if way.client:
                inside.enter_context(way.client.entered())
            self._client = socket.socket(socket.AF_INET, kind)
        self._client.settimeout(10)
        serving.settimeout(10)
        if kind == socket.SOCK_STREAM:
            serving.listen()
            self._client.connect(way.address)
            self._guest = serving.accept()[0]
            serving.close()
            for each in (self._client, self._guest):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        else:
            self._client.connect(way.address)
            self._client.send(b"x")
            serving.connect(serving.recvfrom(1)[1])
            self._guest = serving

    def seconds(self) -> float:
        """Return the seconds of one round trip, in the fastest window."""
        return min(self._window() for _ in range(WINDOWS)) / ROUND_TRIPS

    def _window(self) -> float:
        begun = time.perf_counter()
        for _ in range(ROUND_TRIPS):
            self._client.send(b"x")
            self._guest.recv(1)
            self._guest.send(b"x")
            self._client.recv(1)
        return time.perf_counter() - begun

    def close(self) -> None:
        for each in (self._client, self._guest):
            each.close()


def _compared(name: str, kind: int, guest: Outside, ways: Mapping[str, Way]) -> Iterator[Figure]:
    found: dict[str, list[float]] = {mode: [] for mode in ways}
    for turn in range(TURNS):
        for mode in ORDERS[turn % len(ORDERS)]:
            _set(mode)
            trips = RoundTrips(kind, guest, ways[mode])
            found[mode].append(trips.seconds() * 1e6)
            trips.close()
    _set(BARE)
    protocol = "TCP" if kind == socket.SOCK_STREAM else "UDP"
    for against, words in ((BARE, ""), (TRACKED, ", rules alone")):
        ours, floor = (found[mode] for mode in (OURS, against))
        yield Figure(
            name=f"{name} in the kernel, round trip by {protocol}{words}",
            unit="µs",
            ours=min(ours),
            floor=min(floor),
            spread=spread(ours),
            floor_spread=spread(floor),
        )


def _set(mode: str) -> None:
    nft(nft_rules.remove(owned=False) if mode == BARE else nft_rules.replace(RULESET, owned=False) + MODES[mode])
