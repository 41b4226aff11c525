"""Our network service, as its callers see it."""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

from solo5_systemd.bus.activation import Service
from solo5_systemd.bus.connection import Connection, RemoteError
from solo5_systemd.bus.service_signals import notices
from solo5_systemd.names import DeviceName, TaskName, task_name
from solo5_systemd.network.lease_files import STATE, read_lease_record, read_lease_records
from solo5_systemd.network.model import (
    NIC_SIGNATURE,
    PORT_SIGNATURE,
    Lease,
    LeaseRecord,
    NetworkOverview,
    NicRequest,
    PortRequest,
    Preview,
    Repair,
    Reservation,
)
from solo5_systemd.network.tap_counters import Traffic, read_traffic

_NAME = "org.solo5.Network1"
_PATH = "/org/solo5/Network1"
_TIMEOUT = 90.0
"""Seconds for one reply. The first rules of a boot load some 25 kernel modules, one after the other. A service that
hangs is ended by its watchdog."""

_REQUEST = f"sa{NIC_SIGNATURE}a{PORT_SIGNATURE}"


class Networkd:
    """The network service behind one bus connection."""

    def __init__(self, connection: Connection, state: Path = STATE) -> None:
        self._connection = connection
        self._service = Service(unit="solo5-networkd", name=_NAME, connection=connection, timeout=_TIMEOUT)
        self._state = state

    async def reserve(self, task: TaskName, nics: Sequence[NicRequest], ports: Sequence[PortRequest]) -> Reservation:
        """Have addresses, MACs, taps and ports; they are the task's for a minute, and longer once it starts.

        Raises:
            InvalidRequestError: it can never be given so.
            TakenError: somebody else has it.
            HostError: the service is missing, or the host cannot.
        """
        (leases,) = await self._call("Reserve", _REQUEST, *_request(task, nics, ports))
        return Reservation(task=task, leases=tuple(map(_lease, leases)), ports=tuple(ports))

    async def preview(self, task: TaskName, nics: Sequence[NicRequest], ports: Sequence[PortRequest]) -> Preview:
        """What `reserve` would give; raises what it would raise."""
        leases, nft = await self._call("Preview", _REQUEST, *_request(task, nics, ports))
        return Preview(
            reservation=Reservation(task=task, leases=tuple(map(_lease, leases)), ports=tuple(ports)), nft=nft
        )

    async def attach(self, task: TaskName) -> None:
        """Make taps and rules of what the task has reserved.

        Raises:
            NotFoundError: it has reserved nothing.
            TakenError: a link of ours is somebody else's.
            HostError: the service is missing, or the kernel refused.
        """
        await self._call("Attach", "s", task)

    async def release(self, task: TaskName) -> None:
        await self._call("Release", "s", task)

    async def reservation(self, task: TaskName) -> Reservation | None:
        record = await asyncio.to_thread(read_lease_record, task, self._state)
        return record.reservation if record else None

    async def reservations(self) -> Sequence[Reservation]:
        records = await asyncio.to_thread(read_lease_records, self._state)
        return tuple(record.reservation for record in records)

    async def networks(self) -> Sequence[NetworkOverview]:
        (networks,) = await self._call("Networks")
        return tuple(NetworkOverview.from_wire(tuple(network)) for network in networks)

    async def traffic(self) -> Mapping[TaskName, Mapping[DeviceName, Traffic]]:
        return read_traffic()

    async def expired(self) -> Sequence[LeaseRecord]:
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        records = await asyncio.to_thread(read_lease_records, self._state)
        return tuple(record for record in records if record.expires <= now)

    async def orphans(self) -> Sequence[str]:
        from solo5_systemd.network.orphans import read_orphans

        return await asyncio.to_thread(read_orphans, self._state)

    async def collect(self, *, dry_run: bool) -> Sequence[str]:
        (lines,) = await self._call("Collect", "b", dry_run)
        return tuple(lines)

    async def repairs(self) -> AsyncGenerator[Repair, None]:
        async with aclosing(notices(self._connection, _NAME, "Repaired")) as told:
            async for tasks, what in told:
                yield Repair(tasks=tuple(map(task_name, tasks)), what=what)

    async def _call(self, member: str, signature: str = "", *body: object) -> list[Any]:
        try:
            return await self._service.answer(_PATH, member, signature, body)
        except RemoteError as error:
            raise await self._service.unanswered(error) from error


def _request(task: TaskName, nics: Sequence[NicRequest], ports: Sequence[PortRequest]) -> tuple[object, ...]:
    # The library marshals a struct from a list, and from no tuple.
    return task, [list(nic.to_wire()) for nic in nics], [list(port.to_wire()) for port in ports]


def _lease(wire: Sequence[Any]) -> Lease:
    nic, network, bridge, tap, ipv4, gateway4, mac, mtu = wire
    return Lease.from_wire((nic, network, bridge, tap, ipv4, gateway4, mac, mtu))
