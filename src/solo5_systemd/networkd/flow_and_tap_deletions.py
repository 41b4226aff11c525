"""Delete taps and flows of the connection tracking table in batches: the kernel takes long for each call."""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass

from solo5_systemd.base.errors import HostError
from solo5_systemd.network import links
from solo5_systemd.network.conntrack import RedirectedPort, delete_flows_of, delete_udp_flows
from solo5_systemd.network.model import IpAddress, Protocol, Reservation, destinations
from solo5_systemd.network.namespaces import NetworkNamespace
from solo5_systemd.network.netlink import link_index
from solo5_systemd.settings.addresses import Routes

FLOW_BATCH_INTERVAL_S = 0.2
"""Delay of the deletion of stale flows after an attach, so that one dump of the conntrack table serves many tasks."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Remains:
    """Resources that the caller deletes after `begin_release`: slow kernel operations.

    Attributes:
        reservation: of the released task, with its taps and with ports that PID 1 may still hold.
        redirected: the UDP ports that may have flows to the task's guests.
        addresses: the guests that may have connections of their own in the conntrack table.
        servers: those that may have connections of others.
        behind: the ranges behind them.
        namespace: the network namespace of all this; None: the host's own.
    """

    reservation: Reservation
    redirected: frozenset[RedirectedPort] = frozenset()
    addresses: Sequence[IpAddress] = ()
    servers: Sequence[IpAddress] = ()
    behind: Routes = ()
    namespace: NetworkNamespace | None = None


def redirected(reservations: Iterable[Reservation], *, ended: bool = False) -> frozenset[RedirectedPort]:
    """Return the published UDP ports of tasks, which may have flows to another destination than the guest.

    With `ended`, to no guest: all their flows are stale.
    """
    return frozenset(
        RedirectedPort(port=port.host_port, guest=None if ended else address, version=address.version)
        for held in reservations
        for port in held.ports
        if port.protocol is Protocol.UDP
        for address in destinations(port, held.lease(port.nic))
    )


class Deletions:
    """Deletes taps and flows in threads of their own, since no order between tasks is needed.

    For a tap the kernel waits for an RCU grace period, and flows take a dump of the conntrack table. What waits
    for the same lock is deleted by one call.
    """

    def __init__(self) -> None:
        self._remains: list[Remains] = []
        self._lock = asyncio.Lock()
        self._redirected: frozenset[RedirectedPort] = frozenset()
        self._conntrack_lock = asyncio.Lock()

    async def delete_remains(self, remains: Remains) -> None:
        """Delete flows, then taps, of a release in the host's network namespace."""
        self._redirected |= remains.redirected
        self._remains.append(remains)
        async with self._lock:
            await self._delete_queued(remains.redirected)
            batch, self._remains = self._remains, []
            # Otherwise deleted with another task's, unless that failed.
            if batch or any(link_index(lease.tap) for lease in remains.reservation.leases):
                await asyncio.to_thread(_delete, batch or [remains])

    async def delete_flows(
        self, redirected: frozenset[RedirectedPort], after_s: float = 0, namespace: str = ""
    ) -> None:
        """Delete the stale flows of UDP ports after some seconds, in a namespace; empty: the host's own."""
        if not namespace:
            self._redirected |= redirected
        await asyncio.sleep(after_s)
        if namespace:
            await asyncio.to_thread(_delete_redirected_in, namespace, redirected)
        else:
            await self._delete_queued(redirected)

    async def _delete_queued(self, mine: frozenset[RedirectedPort]) -> None:
        """Delete the stale flows of these ports, and of all others that are queued."""
        async with self._conntrack_lock:
            if not mine & self._redirected:
                return  # no UDP port, or deleted by another task's batch
            redirected, self._redirected = self._redirected, frozenset()
            await asyncio.to_thread(_delete_redirected, redirected)


def _delete_redirected_in(path: str, redirected: frozenset[RedirectedPort]) -> None:
    with suppress(HostError), closing(NetworkNamespace(path)) as namespace, namespace.entered():
        _delete_redirected(redirected)


def _delete_redirected(redirected: frozenset[RedirectedPort]) -> None:
    try:
        delete_udp_flows(redirected)
    except OSError as error:
        ports = sorted(each.port for each in redirected)
        _log.warning("deleting conntrack entries of UDP ports %s failed: %s", ports, error.strerror)


def delete_elsewhere(remains: Remains, namespace: NetworkNamespace) -> None:
    """Delete the flows and taps that a release has left in another namespace than the host's."""
    with namespace.entered():
        _delete_redirected(remains.redirected)
        _delete([remains])


def _delete(batch: Iterable[Remains]) -> None:
    clients = [address for each in batch for address in each.addresses]
    servers = [address for each in batch for address in each.servers]
    behind = [network for each in batch for network in each.behind]
    if clients or servers or behind:
        try:
            delete_flows_of(clients, servers, behind)
        except OSError as error:
            shown = ", ".join(map(str, dict.fromkeys((*clients, *servers, *behind))))
            _log.warning("deleting conntrack entries of %s failed: %s", shown, error.strerror)
    links.delete_links(lease.tap for each in batch for lease in each.reservation.leases)
