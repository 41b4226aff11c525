"""What an attach and a release cost: netlink messages, and searches of the conntrack table."""

import os
import re
import socket
from collections import Counter
from pathlib import Path

import pytest
from tests.contract.guest import Guest
from tests.contract.netns import run
from tests.contract.netservice import Client, Service, nic, tcp, udp
from tests.contract.sockets import ask_udp
from tests.contract.test_network_joined import POOL, Lan, lan
from tests.contract.test_network_life import until_answered

from solo5_systemd.base.names import TaskName

__all__ = ["lan"]

_RECORDING = """
import socket
from solo5_systemd.network.netlink import _messages

log = open({log!r}, "a", buffering=1)

def recorded(original):
    def send(self, data, *rest):
        if self.family == socket.AF_NETLINK:
            for _, kind, _ in _messages(bytes(data)):
                print(self.proto, kind, file=log)
        return original(self, data, *rest)
    return send

def if_nameindex(original=socket.if_nameindex):
    print(socket.NETLINK_ROUTE, 0, file=log)
    return original()

socket.if_nameindex = if_nameindex
socket.socket.send, socket.socket.sendto = recorded(socket.socket.send), recorded(socket.socket.sendto)
"""
"""The service with a record of the netlink messages of all its threads but those of libnftables.

A list of all links by libc is recorded as one message, LIST_LINKS.
"""

ROUTE, NETFILTER = 0, 12
LIST_LINKS, NEWLINK, DELLINK, GET_LINK, SETLINK, NEWNEIGH = 0, 16, 17, 18, 19, 28
GET_ADDRESSES, GET_ROUTE, GET_NEIGH = 22, 26, 30
GET_ELEMENT, GET_GENERATION, GET_FLOWS, DELETE_FLOWS = 10 << 8 | 13, 10 << 8 | 16, 1 << 8 | 1, 1 << 8 | 2

FLOWS_OF_ONE = {(NETFILTER, DELETE_FLOWS): 1}
"""What deletes the flows of an address; before Linux 6.8, they are then read."""
if tuple(map(int, os.uname().release.split(".")[:2])) < (6, 8):
    FLOWS_OF_ONE[NETFILTER, GET_FLOWS] = 1

MADE = {(ROUTE, SETLINK): 3, (ROUTE, NEWLINK): 2, (ROUTE, NEWNEIGH): 1, (ROUTE, GET_LINK): 1}
"""A NIC: its tap is up, a macvlan joins it, which has the tap's name and is up in its bridge, as a port with an entry.

Its bridge is looked at. The name is a message of its own, since a new macvlan with the name of its lower link is
refused before Linux 6.15.
"""

EARLIER = 2
"""Looks for what an earlier run has sent without its address, for each NIC."""


class Messages:
    """The record of netlink messages."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self.recording = _RECORDING.format(log=str(log))

    def taken(self) -> Counter[tuple[int, int]]:
        """Return and forget the protocol and type of each message, without reads of the ruleset's generation."""
        lines = self._log.read_text().splitlines()
        self._log.write_text("")
        found = Counter((int(line.split()[0]), int(line.split()[1])) for line in lines)
        del found[NETFILTER, GET_GENERATION]  # where the tables have no owner
        return found


@pytest.fixture
def messages(tmp_path: Path) -> Messages:
    return Messages(tmp_path / "messages")


@pytest.mark.parametrize("families", [1, 2], ids=["IPv4", "both"])
async def test_an_attach_and_a_release_send_few_messages(service: Service, messages: Messages, families: int) -> None:
    """One look for a neighbour entry, a route, and the host's addresses, two of which have flows, in each family."""
    settings = f"[network.default]\nipv6 = {str(families == 2).lower()}\n"
    async with service.running(settings, change=messages.recording) as client:
        for number in range(4):  # the first one makes the bridge
            await client.lease(f"other{number}", tcp(5400 + number))
        messages.taken()
        await client.reserve(TaskName("a"), (nic("service"),), (tcp(8000), udp(8000)))
        assert messages.taken() == {}
        await client.attach(TaskName("a"))
        looks = {(ROUTE, GET_NEIGH): families, (ROUTE, GET_ROUTE): families, (NETFILTER, GET_ELEMENT): EARLIER}
        looks |= {(ROUTE, GET_ADDRESSES): families, **{of: 2 * families // len(FLOWS_OF_ONE) for of in FLOWS_OF_ONE}}
        assert messages.taken() == MADE | looks
        await client.drop("a")
        deleted = {(ROUTE, SETLINK): 1, (ROUTE, DELLINK): 1}
        deleted |= {(NETFILTER, GET_ELEMENT): families, **dict.fromkeys(FLOWS_OF_ONE, families)}
        assert messages.taken() == deleted


async def test_a_range_of_ports_sends_no_more_messages_than_one_port(service: Service, messages: Messages) -> None:
    """Of libnftables there is one transaction for all."""
    found = []
    async with service.running(change=messages.recording) as client:
        await client.lease("neighbour", udp(5301))
        for task, count in (("one", 1), ("range", 128)):
            messages.taken()
            ports = [make(8000 + number) for make in (tcp, udp) for number in range(count)]
            await client.lease(task, *ports)
            attached = messages.taken()
            await client.drop(task)
            assert sum(attached.pop((NETFILTER, kind), 0) for kind in (GET_FLOWS, DELETE_FLOWS)) in (1, 2)
            found.append((attached, messages.taken()))
    assert found[0] == found[1]


async def test_many_networks_without_an_mtu_cost_one_look_for_the_default_route(
    service: Service, messages: Messages
) -> None:
    """The list of networks, and a task with a NIC on each."""
    names = [f"n{number}" for number in range(4)]
    settings = "".join(f"[network.{name}]\n" for name in names)
    async with service.running(settings, change=messages.recording) as client:
        messages.taken()
        await client.networks()
        assert messages.taken()[ROUTE, GET_ROUTE] == 2, "of IPv4, and of IPv6 since there is none"
        found = {}
        for count in (1, 4):
            await client.reserve(TaskName("a"), [nic(name, name) for name in names[:count]], ())
            found[count] = messages.taken()[ROUTE, GET_ROUTE]
            await client.drop("a")
            messages.taken()
        assert found[1] == found[4]


async def test_a_requested_mac_on_a_joined_bridge_costs_one_look(
    service: Service, lan: Lan, messages: Messages
) -> None:
    """For the MAC, however many links and machines there are, and none for a MAC that is chosen."""
    async with service.running(POOL, change=messages.recording) as client:
        await client.reserve(TaskName("neighbour"), [nic("service", "lan")], ())
        found = []
        for mac in (None, "02:00:5e:00:00:07"):
            messages.taken()
            await client.reserve(TaskName("a"), [nic("service", "lan", mac=mac)], ())
            found.append(messages.taken())
            await client.drop("a")
        assert found[0][ROUTE, LIST_LINKS] == found[0][ROUTE, GET_NEIGH] == 0
        assert found[1] == found[0] + Counter({(ROUTE, GET_NEIGH): 1})


async def test_a_client_of_before_the_first_network_reaches_the_guest(service: Service) -> None:
    """Its flow is of a time without this service's tables, and nothing but a deletion ends it while it sends."""
    run("nft", "add table ip other; add chain ip other c { type filter hook output priority 0; }")
    run("nft", "add rule ip other c ct state new accept")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client_socket:
        client_socket.bind(("127.0.0.1", 6000))
        client_socket.sendto(b"nobody there", ("127.0.0.1", 5353))
        async with service.running() as client, Guest(await client.lease("a", udp(5353)), greeting=b"a"):
            await until_answered(lambda: ask_udp("127.0.0.1", 5353, sock=client_socket.dup()), b"aHELLO")
    run("nft", "delete table ip other")


async def test_the_rules_that_a_packet_meets_do_not_grow_with_the_tasks(client: Client) -> None:
    """A task is elements of sets and maps, each of which one lookup searches."""
    await client.lease("t0", udp(5300), tcp(8000))
    rules = run("nft", "--terse", "--stateless", "list", "ruleset")
    for number in range(1, 20):
        await client.lease(f"t{number}", udp(5300 + number), tcp(8000 + number))
    assert run("nft", "--terse", "--stateless", "list", "ruleset") == rules
    assert len(re.findall(r"(tcp|udp) \. \d+ : ", run("nft", "list", "map", "ip", "solo5", "published"))) == 40
