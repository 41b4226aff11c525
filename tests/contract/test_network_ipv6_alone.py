"""Networks with IPv6 alone (`ipv4 = false`), with real packets. Their paths are those of test_network_table.py."""

import asyncio
import socket
from ipaddress import IPv4Address

import pytest
from tests.contract.guest6 import Guest6
from tests.contract.netns import HOST6, Outside, run
from tests.contract.netservice import Service, nic, udp, until
from tests.contract.test_network_ipv6 import default, far_socket
from tests.contract.test_network_paths import ask_udp

from solo5_systemd.network.derived_addresses import bridge_mac

ALONE = "ipv4 = false\nipv6 = true"


async def test_a_guest_and_its_ports_are_reached_by_ipv6_alone(service: Service, wan: Outside) -> None:
    async with service.running(default(ALONE)) as client:
        lease = await client.lease("a", udp(5353))
        assert (lease.ipv4, lease.gateway4) == (None, None)
        assert "inet " not in run("ip", "address", "show", "dev", lease.bridge)
        async with Guest6(lease) as guest:
            await guest.pinged6(guest.gateway6, b"gateway")
            assert await ask_udp(str(guest.ip6), 7) == b"HELLO"
            assert await ask_udp(HOST6, 5353, sock=far_socket(wan)) == b"HELLO"
            # The port of IPv4 is not this guest's: a process of the host, or another task, can have it.
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
                free.bind(("0.0.0.0", 5353))
        [network] = await client.networks()
        assert (network.ipv4, network.without_ipv4, network.free) == (None, True, 9999)


async def test_a_guest_sends_nothing_by_ipv4(service: Service) -> None:
    async with service.running(default(ALONE)) as client:
        lease, near = await client.lease("a"), await client.lease("b")
        async with Guest6(lease) as guest, Guest6(near) as neighbour:
            await guest.pinged6(guest.gateway6, b"up")
            [host, other] = [bytes.fromhex(each.replace(":", "")) for each in (bridge_mac(lease.network), near.mac)]
            for source in ("10.153.0.7", "192.0.2.1", "0.0.0.0"):
                for to in (host, other, b"\xff" * 6):
                    address = IPv4Address(source)
                    guest.send(guest.ipv4(to, IPv4Address("192.0.2.9"), 17, b"\0" * 8, source=address))
                    guest.send(guest.arp(1, to, IPv4Address("192.0.2.1"), ip=address))
            await guest.pinged6(guest.gateway6, b"after")
            await neighbour.pinged6(neighbour.gateway6, b"after")
            assert [frame for frame in neighbour.frames if frame[12:14] in (b"\x08\0", b"\x08\x06")] == []
        [network] = await client.networks()
        assert network.dropped.by_rule()["spoofed"] == 18


async def test_what_is_lost_is_restored(service: Service) -> None:
    async with service.running(default(ALONE)) as client:
        lease = await client.lease("a", udp(5353))
        async with Guest6(lease) as guest:
            run("ip", "address", "del", f"{lease.gateway6}/64", "dev", lease.bridge)
            await until(lambda: str(lease.gateway6) in run("ip", "-6", "address", "show", "dev", lease.bridge))
            await guest.pinged6(guest.gateway6, b"after")
            service.kill()
            record = service.state / "tasks/a.json"
            record.write_text(record.read_text()[:-40])
            await service.restart()
            await guest.pinged6(guest.gateway6, b"restored")
            assert await ask_udp(str(guest.gateway6), 5353) == b"HELLO"
            [held] = await client.reservations()
            assert (held.leases, held.ports) == ((lease,), (udp(5353),))
            assert (await client.networks())[0].without_ipv4


async def test_networks_of_each_kind_are_beside_each_other(service: Service, wan: Outside) -> None:
    async with service.running(
        f"[network.default]\n[network.both]\nipv6 = true\nreach = ['alone']\n[network.alone]\n{ALONE}\n"
    ) as client:
        await client.lease("four", udp(5301))
        both = (await client.have("both", nics=(nic("service", "both"),))).leases[0]
        alone = (await client.have("alone", udp(5302), nics=(nic("service", "alone"),))).leases[0]
        async with Guest6(both) as first, Guest6(alone) as second:
            await first.pinged6(first.gateway6, b"up")
            await second.pinged6(second.gateway6, b"up")
            assert await ask_udp(HOST6, 5302, sock=far_socket(wan)) == b"HELLO"
            hop = await first.resolve(first.gateway6)
            first.send(first.udp(hop, second.ip6, 7, b"reach"))
            assert await first.heard_udp(b"REACH") == (second.ip6, 7)
        await client.drop("both")
        async with Guest6(alone) as second:
            await second.pinged6(second.gateway6, b"still")
        await client.drop("alone")
        assert "table ip6 solo5" not in run("nft", "list", "tables")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await ask_udp(wan.host, 5302)
