"""The client of solo5-networkd: org.solo5.Network1, and the lease records on disk."""

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from solo5_systemd.base.decode import Fields
from solo5_systemd.base.errors import host_errors
from solo5_systemd.base.names import TaskName, task_name, task_namespace
from solo5_systemd.bus.connection import Connection
from solo5_systemd.bus.network_reader import NetworkReader
from solo5_systemd.bus.services import Service
from solo5_systemd.dbus.interfaces import NETWORK1
from solo5_systemd.network import namespaces
from solo5_systemd.network.lease_files import remove_request, start_mark
from solo5_systemd.network.model import IpAddress, Lease, LeaseRecord, Request, Reservation
from solo5_systemd.settings.records import document, record

if TYPE_CHECKING:
    from solo5_systemd.network.overview import NetworkOverview, Repair

_TIMEOUT_S = 90.0
"""Timeout of one call. The first nftables rules of a boot load some 25 kernel modules. A hanging service is killed by
its watchdog."""


class Networkd(NetworkReader):
    """solo5-networkd over one bus connection, and its state on disk."""

    def __init__(self, connection: Connection) -> None:
        self._service = Service(unit="solo5-networkd", interface=NETWORK1, connection=connection, timeout=_TIMEOUT_S)

    async def reserve(self, task: TaskName, request: Request) -> Reservation:
        """Reserve addresses, MACs, taps and ports. The reservation expires after a minute unless the task attaches.

        Raises:
            InvalidRequestError: the request can never succeed.
            TakenError: an address or port is in use.
            HostError: the service is missing, or the host lacks something.
        """
        (leases,) = await self._service.call("Reserve", task, document(request))
        return _reservation(task, leases, request)

    async def preview(self, task: TaskName, request: Request) -> tuple[Reservation, str]:
        """Return what `reserve` would return, and nft commands for the elements of `attach`; raises as `reserve`."""
        leases, nft = await self._service.call("Preview", task, document(request))
        return _reservation(task, leases, request), nft

    async def attach(self, task: TaskName) -> None:
        """Make the task's own network namespace, and the taps and firewall elements of its reservation.

        The reservation expires if the task's unit does not start.

        Raises:
            NotFoundError: the task has no reservation.
            TakenError: a link or a namespace of this name belongs to another program.
            HostError: the service is missing, or the kernel returned an error.
        """
        await asyncio.to_thread(namespaces.make_task_namespace, task_namespace(task))
        await self._service.call("Attach", task)

    async def move_ports(self, source: TaskName, target: TaskName) -> None:
        """Move the published ports of a task to another's guest; existing flows stay with the first one. Idempotent.

        Raises:
            NotFoundError: the second task has no attached network.
            TakenError: it has other ports.
            InvalidRequestError: it has no NIC of a port's name, or a task is in a network namespace of others.
            HostError: the service is missing, or nftables returned an error.
        """
        await self._service.call("MovePorts", source, target)

    async def connections(self, addresses: Sequence[IpAddress]) -> int:
        """Return the number of open TCP connections and of lasting UDP flows to guests, for root only.

        Raises:
            HostError: the kernel refused it.
        """
        from solo5_systemd.network.conntrack import open_connections  # for startup time: a start needs none

        with host_errors("the kernel's connection table cannot be read"):
            return await asyncio.to_thread(open_connections, addresses)

    async def release(self, task: TaskName) -> None:
        """Release the leases and ports of a task. Idempotent."""
        await self._service.call("Release", task)

    async def sleep(self, task: TaskName) -> None:
        """Put a task to sleep until the next packet for it. Idempotent.

        Raises:
            NotFoundError: the task has no NIC on a network of the host.
            InvalidRequestError: its guest is on a joined bridge, or does not run.
            HostError: the service is missing, or the kernel returned an error.
        """
        await self._service.call("Sleep", task)

    async def wake(self, task: TaskName) -> None:
        """Wake a task that sleeps. Idempotent."""
        await self._service.call("Wake", task)

    async def awake_because(self, task: TaskName) -> str:  # noqa: D102 - as in NetworkReader
        (reason,) = await self._service.call("Awake", task)
        return str(reason)

    def start_mark(self, task: TaskName) -> AbstractContextManager[None]:
        """Mark a start whose caller has attached the network; see `network.lease_files.start_mark`."""
        return start_mark(task)

    async def forget(self, task: TaskName) -> None:
        """Remove the request of a task, which no start by systemd can attach then, and its own namespace. Idempotent.

        A namespace of another program at its path stays.

        Raises:
            HostError: it cannot be removed.
        """
        namespace = task_namespace(task)
        if os.path.lexists(namespace) and await asyncio.to_thread(namespaces.is_task_namespace, namespace):
            if await self.reservation(task) is not None:  # of a start that was killed: else its tap is repaired
                await self.release(task)
            await asyncio.to_thread(namespaces.remove_task_namespace, namespace)
        remove_request(task)

    async def reservation(self, task: TaskName) -> Reservation | None:
        """Return the reservation of a task from its lease record; None without one."""
        lease = await self.record(task)
        return lease.reservation if lease else None

    async def networks(self) -> "Sequence[NetworkOverview]":
        """Return all networks, configured or in use."""
        from solo5_systemd.network.overview import NetworkOverview  # for startup time: a start needs none

        (networks,) = await self._service.call("Networks")
        return tuple(record(NetworkOverview, Fields(network)) for network in networks.values())

    async def expired(self) -> Sequence[LeaseRecord]:
        """Return the lease records whose reservation time is over."""
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        return tuple(record for record in await self.records() if record.expires <= now)

    async def orphans(self) -> Sequence[str]:
        """Return a line for each tap and firewall element without a lease; firewall elements for root only."""
        from solo5_systemd.network.orphans import read_orphans

        return await asyncio.to_thread(read_orphans)

    async def collect(self, *, dry_run: bool) -> Sequence[str]:
        """Release expired leases, and remove orphaned taps and elements; return a line for each lease."""
        (lines,) = await self._service.call("Collect", dry_run)
        return tuple(lines)

    def repairs(self) -> "AsyncGenerator[Repair, None]":
        """Yield each repair; as `Service.signals`."""
        from solo5_systemd.network.overview import Repair  # as above

        return self._service.signals(
            "Repaired", lambda tasks, what: Repair(tasks=tuple(map(task_name, tasks)), what=what)
        )

    def sleep_changes(self) -> AsyncGenerator[tuple[TaskName, bool, str], None]:
        """Yield each task that falls asleep (true) or is woken, with the reason; as `Service.signals`."""
        return self._service.signals("SleepChanged", lambda task, *of: (task_name(task), *of))


def _reservation(task: TaskName, leases: Sequence[object], request: Request) -> Reservation:
    return request.reservation(task, (record(Lease, Fields(lease, "lease")) for lease in leases))
