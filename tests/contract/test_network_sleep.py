"""Tasks that sleep without packets, and are woken by the first one."""

import asyncio
import os
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.contract.guest import ALL_NODES, Guest, multicast
from tests.contract.netns import Outside, run, sent_again
from tests.contract.netservice import Client, Pid1, Service, nic, tcp, until
from tests.contract.sockets import ask_tcp

from solo5_systemd.base.names import TaskName

RACES = int(os.environ.get("RACES", "200"))
WEB = TaskName("web")
UNIT = "solo5-task-web.service"
STOP, CONT = (UNIT, int(signal.SIGSTOP)), (UNIT, int(signal.SIGCONT))


class Sleeper(Guest):
    """A guest whose tender a stand-in for PID 1 stops and continues."""

    def stop(self) -> None:
        asyncio.get_running_loop().remove_reader(self.descriptor)

    def go_on(self) -> None:
        asyncio.get_running_loop().add_reader(self.descriptor, self._on_readable)


@asynccontextmanager
async def sleeper(client: Client, manager: Pid1, idle_s: int = 0) -> AsyncIterator[Sleeper]:
    """A guest with an open tap and a published port."""
    reservation = await client.have("web", tcp(8080), idle_s=idle_s)
    manager.begin(UNIT)
    async with Sleeper(reservation.leases[0]) as guest:
        manager.on_signal = {signal.SIGSTOP: guest.stop, signal.SIGCONT: guest.go_on}
        yield guest
    manager.on_signal = {}


async def asleep(client: Client) -> int:
    record = await client.record(WEB)
    assert record is not None
    return record.asleep


async def awake(client: Client) -> None:
    """Wait for the record of an awake task, which is written once its tender has been continued."""
    async with asyncio.timeout(30):
        while await asleep(client):  # noqa: ASYNC110 - what another process does is looked at, not told
            await asyncio.sleep(0.01)


async def get_at_once(address: str) -> None:
    before = sent_again()
    assert await ask_tcp(address) == b"HELLO"
    assert sent_again() == before, "the first packet has come"


async def test_the_first_packet_wakes(client: Client, manager: Pid1) -> None:
    async with sleeper(client, manager) as guest:
        assert await ask_tcp(str(guest.ip)) == b"HELLO"
        begun = time.time()
        await client.sleep(WEB)
        assert manager.signals == [STOP]
        assert await client.orphans() == ()
        assert begun <= await asleep(client) / 1e6 <= time.time()
        await get_at_once(str(guest.ip))
        assert manager.signals == [STOP, CONT]
        await awake(client)
        assert await ask_tcp(str(guest.ip)) == b"HELLO"
        assert manager.signals == [STOP, CONT]


async def test_packets_and_processor_time_keep_a_task_awake(client: Client, manager: Pid1) -> None:
    async with sleeper(client, manager, idle_s=5) as guest:
        for _ in range(6):
            await ask_tcp(str(guest.ip))
            await asyncio.sleep(1)
        assert manager.signals == []
        for _ in range(6):
            manager.processor_time += 10**8
            await asyncio.sleep(1)
        assert manager.signals == []
        await until(lambda: STOP in manager.signals)


async def test_a_neighbour_wakes(client: Client, manager: Pid1) -> None:
    async with sleeper(client, manager) as guest:
        other = await client.have("other")
        async with Guest(other.leases[0]) as neighbour:
            await client.sleep(WEB)
            assert await neighbour.resolve(guest.ip) == guest.mac
            assert manager.signals == [STOP, CONT]
            await client.sleep(WEB)
            neighbour.send(neighbour.udp(guest.mac, guest.ip, 7, b"known by its MAC"))
            await neighbour.heard_udp(b"KNOWN BY ITS MAC")
            assert manager.signals == [STOP, CONT] * 2


async def test_a_packet_of_ipv6_wakes_and_a_question_for_its_address(service: Service, manager: Pid1) -> None:
    async with service.running("[network.default]\nipv6 = true\n") as client, sleeper(client, manager) as guest:
        assert await ask_tcp(str(guest.ip6)) == b"HELLO"
        for flush in (False, True):
            await client.sleep(WEB)
            if flush:
                run("ip", "-6", "neighbour", "flush", "dev", "solo5-default")
            await get_at_once(str(guest.ip6))
        assert manager.signals == [STOP, CONT] * 2


async def test_requests_for_other_addresses_and_broadcasts_wake_no_task(service: Service, manager: Pid1) -> None:
    async with (
        service.running("[network.default]\nipv6 = true\n") as client,
        sleeper(client, manager) as guest,
        Guest(await client.lease("other")) as neighbour,
    ):
        await client.sleep(WEB)
        await neighbour.resolve(neighbour.gateway)
        for number in range(5):
            neighbour.send(neighbour.arp(1, b"\xff" * 6, guest.ip + 40))
            neighbour.send(neighbour.udp(b"\xff" * 6, guest.ip, 7, b"to all"))
            neighbour.send(neighbour.udp(multicast(ALL_NODES), ALL_NODES, 7, b"to all"))
            neighbour.send(neighbour.advertise(neighbour.ip6, to_mac=guest.mac))
            neighbour.send(neighbour.solicit(neighbour.gateway6 + 40 + number, to=guest.mac))
        await asyncio.sleep(0.5)
        assert manager.signals == [STOP]
        assert await asleep(client)


async def test_broadcasts_of_days_leave_room_for_the_packet_that_wakes(client: Client, manager: Pid1) -> None:
    """The queue of a tap has no more than a thousand frames."""
    async with sleeper(client, manager) as guest:
        await client.sleep(WEB)
        record = await client.record(WEB)
        assert record is not None
        (lease,) = record.reservation.leases
        assert lease.ipv4 is not None
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            for _ in range(3000):
                sender.sendto(b"to all", (str(lease.ipv4.network.broadcast_address), 7))
        await get_at_once(str(guest.ip))
        assert manager.signals == [STOP, CONT]


async def test_packets_that_the_filter_drops_wake_no_task(client: Client, manager: Pid1, outside: Outside) -> None:
    async with sleeper(client, manager) as guest:
        await client.sleep(WEB)
        outside.ip("route", "replace", f"{guest.ip}/32", "via", outside.host)
        with outside.entered(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for port in range(1, 200):
                sender.sendto(b"scan", (str(guest.ip), port))
        await asyncio.sleep(0.5)
        assert manager.signals == [STOP]


async def test_a_packet_while_the_service_is_dead_wakes_after_its_start(
    service: Service, client: Client, manager: Pid1
) -> None:
    async with sleeper(client, manager) as guest:
        assert await ask_tcp(str(guest.ip)) == b"HELLO"
        await client.sleep(WEB)
        service.kill()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.connect((str(guest.ip), 7))
            sender.send(b"sent once")
            await service.restart()
            async with asyncio.timeout(4):  # after which the host asks again for the MAC, which wakes, too
                assert await asyncio.get_running_loop().sock_recv(sender, 100) == b"SENT ONCE"
        assert manager.signals == [STOP, CONT]


async def test_a_packet_in_the_moment_of_falling_asleep_wakes(client: Client, manager: Pid1) -> None:
    """No packet waits for the next one: each is answered at once, whenever it comes."""
    async with sleeper(client, manager) as guest:
        await ask_tcp(str(guest.ip))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.connect((str(guest.ip), 7))
            loop = asyncio.get_running_loop()
            for number in range(RACES):
                # Less than the 5 seconds after which the host asks again for the MAC, which wakes, too.
                async with asyncio.timeout(4), asyncio.TaskGroup() as tasks:
                    tasks.create_task(client.sleep(WEB))
                    await asyncio.sleep(number % 20 / 5000)
                    sender.send(b"n%d" % number)
                    assert await loop.sock_recv(sender, 100) == b"N%d" % number


async def test_a_stop_of_the_service_wakes_all(service: Service, client: Client, manager: Pid1) -> None:
    async with sleeper(client, manager) as guest:
        await client.sleep(WEB)
        await asyncio.to_thread(service.end)  # PID 1 is in this event loop
        assert manager.signals == [STOP, CONT]
        assert await ask_tcp(str(guest.ip)) == b"HELLO"
        await service.restart()
        assert await asleep(client) == 0


async def test_a_task_that_is_started_again_while_it_sleeps_is_awake(client: Client, manager: Pid1) -> None:
    """As by `systemctl restart`: its unit has a job all the time, so that its network is not released."""
    async with sleeper(client, manager) as guest:
        await client.sleep(WEB)
        guest.go_on()
        await client.attach(WEB)
        assert await asleep(client) == 0
        for name in ("asleep", "asleep4"):
            assert "elements" not in run("nft", "list", "set", "bridge", "solo5", name)
        assert await ask_tcp(str(guest.ip)) == b"HELLO"
        assert manager.signals == [STOP, CONT], "the one that runs may be stopped, and only be attached anew"
        await client.sleep(WEB)
        assert await ask_tcp(str(guest.ip)) == b"HELLO"
        assert manager.signals == [STOP, CONT, STOP, CONT]


async def test_rules_of_sleepers_are_restored(service: Service, manager: Pid1) -> None:
    async with service.running(None, "--shared-tables") as client, sleeper(client, manager) as guest:
        await client.sleep(WEB)
        run("nft", "flush", "ruleset")
        await until(lambda: "solo5" in run("nft", "list", "tables"))
        assert await ask_tcp(str(guest.ip)) == b"HELLO"
        assert manager.signals == [STOP, CONT]


async def test_a_sidecar_wakes_the_guest(client: Client, manager: Pid1, outside: Outside) -> None:
    outside.ip("link", "set", "lo", "up")
    outside.ip("route", "add", "default", "via", outside.host)
    reservation = await client.reserve(WEB, [nic("service", "namespace")], [tcp(8080)], namespace=outside.path)
    await client.attach(WEB)
    manager.begin(UNIT)
    async with Sleeper(reservation.leases[0]) as guest:
        manager.on_signal = {signal.SIGSTOP: guest.stop, signal.SIGCONT: guest.go_on}
        await client.sleep(WEB)
        with outside.entered():
            inside = socket.socket(socket.AF_INET)
        inside.setblocking(False)
        with inside:
            await asyncio.get_running_loop().sock_connect(inside, ("127.0.0.1", 8080))
            inside.sendall(b"hello")
            assert await asyncio.get_running_loop().sock_recv(inside, 100) == b"HELLO"
        assert manager.signals == [STOP, CONT]
    await client.drop("web")
