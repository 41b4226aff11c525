"""What the packet filter drops is counted, by guest and by rule, and repairs are recorded with their times."""

import time
from collections.abc import Mapping
from ipaddress import IPv4Address

from tests.contract.family import until_pinged
from tests.contract.guest import BROADCAST, TCP, UDP, Guest, _tcp, _udp
from tests.contract.netns import Outside, run
from tests.contract.netservice import UNTOLD, Client, Service, until
from tests.contract.test_network_policy import datagram

from solo5_systemd.network.lease_files import read_repairs

EVERYONE = IPv4Address("255.255.255.255")

IGMP = 2


async def counts(client: Client, name: str = "default") -> Mapping[str, int]:
    """Return the drops of a network that are not 0."""
    [found] = [network for network in await client.networks() if network.name == name]
    return {rule: count for rule, count in found.dropped.by_rule().items() if count}


async def test_each_rule_counts_what_it_drops(service: Service, outside: Outside) -> None:
    service.configure("[network.default]\n[network.back]\n")
    run("ip", "route", "add", "169.254.169.254", "via", outside.address)
    async with service.running() as client:
        other = await client.lease("b", network="back")
        lease = await client.lease("a")
        async with Guest(lease) as guest:
            await until_pinged(guest)
            assert await counts(client) == {}
            gateway = await guest.resolve(guest.gateway)
            free = next(each for each in lease.ipv4.network.hosts() if each not in (guest.ip, guest.gateway))  # type: ignore[union-attr]
            there = IPv4Address(outside.address)
            once: Mapping[str, bytes] = {
                "spoofed": guest.ipv4(gateway, there, UDP, datagram(b"x"), source=free),
                "loopback": guest.ipv4(gateway, IPv4Address("127.0.0.1"), UDP, datagram(b"x")),
                "metadata": guest.ipv4(gateway, IPv4Address("169.254.169.254"), UDP, datagram(b"x")),
                "host": guest.ipv4(gateway, guest.gateway, UDP, datagram(b"x")),
                "absent": guest.ipv4(gateway, free, UDP, datagram(b"x")),
                "invalid": guest.ipv4(gateway, there, TCP, _tcp(guest.ip.packed + there.packed, 1, 2, 3, 4, 0x3F)),
                "fragments": guest.ipv4(gateway, there, UDP, datagram(b"x"), fragment=1),
                "unsafe": guest.ipv4(gateway, there, UDP, _udp(67, 68, b"offer")),
            }
            for number, (rule, frame) in enumerate(once.items(), 1):
                for _ in range(number):
                    guest.send(frame)
                await until_pinged(guest)
                assert (await counts(client)).get(rule) == number, rule
            guest.send(
                guest.ipv4(gateway, there, IGMP, b"\x11\x64\xee\x9b" + bytes(4))
            )  # a query for members of groups
            await until_pinged(guest)
            assert (await counts(client))["unsafe"] == len(once) + 1
            last = lease.ipv4.network.broadcast_address  # type: ignore[union-attr]
            for frame in (
                guest.arp(1, b"\xff" * 6, free),
                guest.ipv4(b"\xff" * 6, last, UDP, datagram(b"x")),
            ):
                before = (await counts(client)).get("broadcasts", 0)
                for _ in range(700):
                    guest.send(frame)
                assert (await counts(client))["broadcasts"] > before + 50
            # From another network: counted for the one that it would have entered.
            guest.send(guest.ipv4(gateway, other.address or there, UDP, datagram(b"x")))
            await until_pinged(guest)
            assert await counts(client, "back") == {"closed": 1}
            [mine] = [network for network in await client.networks() if network.name == "default"]
            of_guest = mine.dropped.of_guest(lease.addresses, lease.tap)
            assert (of_guest["spoofed"], of_guest["fragments"], of_guest["egress"]) == (1, 7, 0)


async def test_frames_that_are_unsafe_on_a_bridge_of_others_are_counted(service: Service, br0: str) -> None:
    async with service.running(f'[network.lan]\njoin = "{br0}"\n') as client:
        lease = await client.lease("a", network="lan")
        async with Guest(lease) as guest:
            for frame in (
                guest.frame(bytes.fromhex("0180c2000000"), 4, b"bpdu"),
                guest.frame(b"\xff" * 6, 0x8100, b"tagged"),
                guest.ipv4(b"\xff" * 6, IPv4Address("255.255.255.255"), UDP, _udp(67, 68, b"offer")),
            ):
                guest.send(frame)
            guest.send(guest.frame(b"\xff" * 6, 0x86DD, b"ipv6"))

            assert await counts(client, "lan") == {"unsafe": 3, "spoofed": 1}


async def test_repairs_are_recorded_newest_first_and_outlive_the_service(service: Service) -> None:
    async with service.running() as client:
        assert read_repairs() == ()
        lease = await client.lease("a")
        begun = time.time_ns() // 1000
        for number in range(1, 4):
            run("ip", "link", "delete", lease.tap)
            await until(lambda number=number: len(read_repairs()) == number)  # type: ignore[misc]
            await until(lambda: lease.tap in run("ip", "link"))
        recorded = read_repairs()
        assert [(each.tasks, "was missing" in each.what) for each in recorded] == [(("a",), True)] * 3
        assert time.time_ns() // 1000 >= recorded[0].time > recorded[-1].time >= begun
        service.kill()
        await service.restart()
        assert read_repairs() == await client.recent_repairs() == recorded


async def test_a_guest_without_its_address_is_reported_once_for_each_run(service: Service) -> None:
    """What it sends from instead, or that it looks for a DHCP server; nothing that an earlier run has done."""

    def told() -> list[str]:
        return [each.what for each in read_repairs()]

    async with service.running(None, *UNTOLD) as client:
        lease = await client.lease("a")
        async with Guest(lease) as guest:
            await until_pinged(guest)
            assert lease.address is not None
            for _ in range(3):
                guest.send(guest.arp(1, BROADCAST, IPv4Address("10.0.0.1"), ip=IPv4Address("10.0.0.2")))
                guest.send(guest.arp(1, BROADCAST, lease.address, ip=IPv4Address(0)))
                guest.send(guest.ipv4(BROADCAST, EVERYONE, UDP, _udp(68, 67, bytes(300)), source=IPv4Address(0)))
            await until(lambda: len(told()) == 2)
            by_dhcp, other = sorted(told())
            assert by_dhcp.startswith(
                "not repaired: NIC service requests an address by DHCP, which network default does not"
            )
            assert other.startswith(
                f"not repaired: NIC service sends from 10.0.0.2, not from its lease {lease.address}, "
            )
        await client.drop("a")
        async with Guest(await client.lease("a")) as guest:
            await until_pinged(guest)
            guest.send(guest.arp(1, BROADCAST, IPv4Address("10.0.0.1"), ip=IPv4Address("10.0.0.3")))
            await until(lambda: len(told()) > 2)
            assert "sends from 10.0.0.3" in told()[0]
            assert len(told()) == 3
