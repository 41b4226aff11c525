"""Ports that are moved from one task's guest to another's: what is new reaches the other, what was there stays."""

import asyncio
import json
import socket
import threading
from contextlib import closing

import pytest
from tests.contract.guest import Guest
from tests.contract.netservice import Client, Service, nic, tcp, udp
from tests.contract.test_network_life import until_answered
from tests.contract.test_network_paths import ask_tcp, ask_udp

from solo5_systemd.base.errors import InvalidRequestError, NotFoundError, TakenError
from solo5_systemd.base.names import TaskName

OLD, NEW = TaskName("old"), TaskName("new")


async def reaches(greeting: bytes, port: int = 5353, sock: socket.socket | None = None) -> None:
    async with asyncio.timeout(10):
        await until_answered(lambda: ask_udp("127.0.0.1", port, sock=sock and sock.dup()), greeting + b"HELLO")


async def ports_of(client: Client) -> dict[str, int]:
    return {held.task: len(held.ports) for held in await client.reservations()}


async def test_new_flows_reach_the_other_guest_and_old_ones_stay(service: Service) -> None:
    async with service.running() as client:
        async with (
            Guest(await client.lease("old", udp(5353)), greeting=b"old"),
            Guest(await client.lease("new"), greeting=b"new"),
        ):
            with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as present:
                present.bind(("127.0.0.1", 6000))
                await reaches(b"old", sock=present)
                await client.move_ports(OLD, NEW)
                await reaches(b"old", sock=present)
                await reaches(b"new")
                assert await ports_of(client) == {"old": 0, "new": 1}
                await client.move_ports(OLD, NEW)  # there is nothing left to move
                await client.move_ports(NEW, OLD)
                await reaches(b"old")
                # An attach deletes flows to other guests than the port's: after a move, those that were left.
                await client.move_ports(OLD, NEW)
                await client.attach(NEW)
                await reaches(b"new", sock=present)
        await client.drop("old")
        await reaches_nothing_of("old", client)


async def test_a_udp_flow_that_lasts_is_a_connection_of_the_guest_that_it_stays_with(service: Service) -> None:
    """Without an end in the protocol: a VPN's clients would be cut off as soon as the ports are moved."""
    async with service.running() as client:
        leases = await client.lease("old", udp(5353)), await client.lease("new")
        async with Guest(leases[0], greeting=b"old"), Guest(leases[1], greeting=b"new"):

            async def connections() -> list[int]:
                return [await client.connections(lease.addresses) for lease in leases]

            with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as present:
                present.bind(("127.0.0.1", 6000))
                await reaches(b"old", sock=present)
                assert await connections() == [0, 0], "a question and its answer, as of DNS"
                await client.move_ports(OLD, NEW)
                async with asyncio.timeout(10):
                    while await connections() != [1, 0]:
                        await reaches(b"old", sock=present)
                        await asyncio.sleep(0.2)
                await reaches(b"new")
                assert await connections() == [1, 0]


async def reaches_nothing_of(task: str, client: Client) -> None:
    assert task not in await ports_of(client)


async def test_a_release_of_the_first_task_leaves_the_ports_to_the_second(service: Service) -> None:
    async with service.running() as client:
        await client.lease("old", udp(5353), tcp(8080))
        async with Guest(await client.lease("new"), greeting=b"new"):
            await client.move_ports(OLD, NEW)
            await client.drop("old")
            await reaches(b"new")
            with pytest.raises(TakenError, match="is taken by task new"):
                await client.lease("third", tcp(8080))
            lease = await client.lease("old")
            async with Guest(lease, greeting=b"again"):
                await client.move_ports(NEW, OLD)
                await reaches(b"again")
                assert await client.reservation(OLD) is not None
                # The same request as the first one: a restart keeps lease and ports.
                again = await client.have("old", udp(5353), tcp(8080))
                assert again.leases == (lease,)


async def test_ports_return_when_the_second_task_ends(service: Service) -> None:
    async with service.running() as client, Guest(await client.lease("old", udp(5353)), greeting=b"old"):
        await client.lease("new")
        await client.move_ports(OLD, NEW)
        service.kill()
        await service.restart()
        await client.drop("new")
        await reaches(b"old")
        assert await ports_of(client) == {"old": 1}
        await client.lease("new")
        await client.move_ports(OLD, NEW)
        await client.move_ports(NEW, OLD)
        await client.drop("old")  # which has only its own ports
        assert await ports_of(client) == {"new": 0}


async def test_ports_stay_moved_over_a_kill_of_the_service(service: Service) -> None:
    async with service.running() as client:
        await client.lease("old", udp(5353))
        async with Guest(await client.lease("new"), greeting=b"new"):
            await client.move_ports(OLD, NEW)
            service.kill()
            await service.restart()
            await reaches(b"new")
            assert await ports_of(client) == {"old": 0, "new": 1}


@pytest.mark.parametrize("back", [False, True], ids=["there", "back"])
async def test_a_kill_between_the_two_records_leaves_the_ports_moved(service: Service, back: bool) -> None:
    async with service.running() as client:
        await client.lease("old", udp(5353))
        await client.lease("new")
        if back:
            await client.move_ports(OLD, NEW)
        source, target = (NEW, OLD) if back else (OLD, NEW)
        record = service.state / f"tasks/{source}.json"
        before = record.read_bytes()
        await client.move_ports(source, target)
        service.kill()
        record.write_bytes(before)  # as if the second file had not been written
        await service.restart()
        assert await ports_of(client) == {source: 0, target: 1}
        assert "ports" not in json.loads(record.read_text())


async def test_no_connection_is_refused_while_ports_move_back_and_forth(service: Service) -> None:
    await service.restart()
    stop = threading.Event()

    async def connect() -> int:
        number = 0
        while not stop.is_set():
            assert await ask_tcp("127.0.0.1", 8080)
            number += 1
        return number

    async with service.client() as client:
        async with (
            Guest(await client.lease("old", tcp(8080)), greeting=b"old"),
            Guest(await client.lease("new"), greeting=b"new"),
        ):
            asking = asyncio.ensure_future(connect())
            for _ in range(50):
                await client.move_ports(OLD, NEW)
                await client.move_ports(NEW, OLD)
            stop.set()
            assert await asking > 0
        await client.drop("old")
        await client.drop("new")


async def test_what_cannot_be_moved_is_refused_and_nothing_has_changed(service: Service) -> None:
    async with service.running() as client:
        with pytest.raises(NotFoundError, match="task new has no network"):
            await client.move_ports(OLD, NEW)
        await client.lease("old", udp(5353, nic_name="service"))
        with pytest.raises(InvalidRequestError, match="cannot be moved to itself"):
            await client.move_ports(OLD, OLD)
        await client.have("new", nics=(nic("other"),))
        with pytest.raises(InvalidRequestError, match="has no NIC service, to which port 5353 is published"):
            await client.move_ports(OLD, NEW)
        await client.drop("new")
        await client.lease("new", udp(5354))
        with pytest.raises(TakenError, match="has published ports"):
            await client.move_ports(OLD, NEW)
        await client.drop("new")
        await client.reserve(NEW, (nic("service"),), ())
        with pytest.raises(NotFoundError, match="task new has no network"):  # it is reserved only
            await client.move_ports(OLD, NEW)
        await client.drop("new")
        assert await ports_of(client) == {"old": 1}
        await client.drop("old")
        with pytest.raises(NotFoundError):
            await client.move_ports(OLD, NEW)
