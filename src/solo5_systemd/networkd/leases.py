"""The lease records of tasks: in memory, and in files that a restarted service reads; and what a release leaves."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache
from ipaddress import IPv4Interface, IPv6Interface, ip_interface
from typing import Any, TypeVar

from solo5_systemd.base.names import TaskName
from solo5_systemd.network.conntrack import UdpPorts
from solo5_systemd.network.ipam import Allocations
from solo5_systemd.network.lease_files import LeaseStore
from solo5_systemd.network.model import (
    EVERY_IPV6,
    GuestNames,
    IpAddress,
    Lease,
    LeaseRecord,
    LeaseState,
    PortRequest,
    Protocol,
    Reservation,
    destinations,
)
from solo5_systemd.network.namespaces import NetworkNamespace
from solo5_systemd.network.request_checks import host_ports
from solo5_systemd.settings.addresses import IpNetwork, Routes

T = TypeVar("T")

RESERVATION_TIMEOUT_S = 60
ATTACH_TIMEOUT_S = 10
"""How long after an Attach a task may be without a run: its caller calls StartTransientUnit next."""


class Leases:
    """The lease records of one network namespace. Not thread-safe; exceptions state it."""

    def __init__(self, store: LeaseStore, namespace: str = "") -> None:
        self._store = store
        self._namespace = namespace
        self._records: dict[TaskName, LeaseRecord] = {}
        self.allocations = Allocations()

    @property
    def records(self) -> Sequence[LeaseRecord]:
        """The lease records of all tasks, as a copy: safe to read in any thread."""
        return tuple(self._records.values())

    def get(self, task: TaskName) -> LeaseRecord | None:
        """Return the record of a task; safe in any thread."""
        return self._records.get(task)

    def of(self, value: IpAddress | str) -> LeaseRecord | None:
        """Return the record of the task that has an address or a tap; None: no task has it. Safe in any thread."""
        return self.get(self.allocations.owners.get(value, TaskName("")))

    def reserved(self, reservation: Reservation, names: GuestNames) -> LeaseRecord:
        """Return a new record of a reservation, which `save` keeps."""
        return LeaseRecord(
            reservation=reservation,
            state=LeaseState.RESERVED,
            expires=now() + RESERVATION_TIMEOUT_S,
            namespace=self._namespace,
            names=names,
        )

    def save(self, record: LeaseRecord) -> None:
        """Write a record to its file, then keep it."""
        self._store.save_lease_record(record)
        self.remember(record)

    def remember(self, saved: LeaseRecord) -> None:
        """Keep a record that is in its file already."""
        record: LeaseRecord = _shared(saved)
        task = record.reservation.task
        before = self._records.get(task)
        if before is None or before.reservation != record.reservation:  # most saves change the state alone
            if before is not None:
                self.allocations.remove(before.reservation)
            self.allocations.add(record.reservation)
        self._records[task] = record

    def move_ports(self, source: LeaseRecord, target: LeaseRecord) -> tuple[LeaseRecord, LeaseRecord]:
        """Save two records with the ports of the first as those of the second, and return them.

        Between the two files both have the ports: `resolve_moves` determines which has them.
        """
        moves = max(source.moves, target.moves) + 1
        first, second = source.reservation, target.reservation
        without = replace(source, reservation=replace(first, ports=()), moves=moves, lender="")
        having = replace(
            target,
            reservation=replace(second, ports=first.ports),
            moves=moves,
            lender="" if source.lender == second.task else first.task,  # back with the lender, they are lent no longer
        )
        for record in (having, without):  # in this order: a kill in between loses no port
            self.save(record)
        return without, having

    def resolve_moves(self) -> None:
        """End a move of ports that was interrupted between its two files."""
        last: dict[PortRequest, int] = {}
        for record in self.records:
            for port in record.reservation.ports:
                last[port] = max(last.get(port, 0), record.moves)
        for record in self.records:
            held = record.reservation
            ports = tuple(port for port in held.ports if last[port] == record.moves)
            if ports != held.ports:
                self.save(replace(record, reservation=replace(held, ports=ports), moves=record.moves + 1))

    def forget(self, task: TaskName) -> None:
        """Drop a record, whose file the caller removes as the last step of a release."""
        record = self._records.pop(task, None)
        if record is not None:
            self.allocations.remove(record.reservation)

    def _in(self, state: LeaseState) -> Sequence[LeaseRecord]:
        """Return the records in a state; safe in any thread."""
        return [record for record in self.records if record.state is state]

    def attached(self) -> Sequence[LeaseRecord]:
        """Return the records of tasks with an attached network."""
        return self._in(LeaseState.ATTACHED)

    def waiting(self) -> Sequence[LeaseRecord]:
        """Return the records of tasks without a process, which wait for their first packet."""
        return self._in(LeaseState.WAITING)

    def attached_leases(self) -> Sequence[tuple[TaskName, Lease]]:
        """Return each attached lease with its task."""
        return [(held.reservation.task, lease) for held in self.attached() for lease in held.reservation.leases]

    def published_ports(self) -> Sequence[PortRequest]:
        """Return the host's ports of all tasks that are not being released."""
        live = (held for held in self.records if held.state is not LeaseState.RELEASING)
        return [port for held in live for port in host_ports(held.reservation)]


_FIELDS: dict[Any, Sequence[str]] = {
    kind: [each.name for each in fields(kind)] for kind in (LeaseRecord, Reservation, Lease, PortRequest)
}
_INTERFACES = (IPv4Interface, IPv6Interface)


def _shared(value: Any) -> Any:
    """Return an equal record, which has what others have, too, as the same objects: a third of its memory."""
    kind = type(value)
    if kind in _FIELDS:
        return kind(**{name: _shared(getattr(value, name)) for name in _FIELDS[kind]})
    if kind is tuple:
        return _one(tuple(map(_shared, value)))
    if kind in _INTERFACES:
        value.__dict__ = _attributes(value.network)
        return value
    return _one(value)


@lru_cache(maxsize=256, typed=True)
def _one(value: T) -> T:
    """Return the first of the equal values of late: those of many tasks are looked up often, and stay."""
    return value


@lru_cache(maxsize=256)
def _attributes(network: IpNetwork) -> dict[str, Any]:
    """Return the attributes that are equal for all addresses of a network: all but the address, which is in a slot."""
    return vars(ip_interface((network.network_address, network.prefixlen)))


def attached(record: LeaseRecord) -> LeaseRecord:
    """Return a record as that of an attached network, whose unit has to run soon."""
    return replace(record, state=LeaseState.ATTACHED, expires=now() + ATTACH_TIMEOUT_S)


def now() -> int:
    """Return the seconds since boot, suspend included (CLOCK_BOOTTIME)."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME))


@dataclass(frozen=True, kw_only=True)
class Remains:
    """Resources that the caller deletes after `begin_release`: slow kernel operations.

    Attributes:
        ports: those that PID 1 may still hold.
        addresses: the guests that may have connections of their own in the conntrack table.
        servers: those that may have connections of others.
        behind: the ranges behind them.
        namespace: the network namespace of all this; None: the host's own.
    """

    taps: Sequence[str] = ()
    ports: Sequence[PortRequest] = ()
    addresses: Sequence[IpAddress] = ()
    servers: Sequence[IpAddress] = ()
    behind: Routes = ()
    namespace: NetworkNamespace | None = None


def udp_ports(reservations: Iterable[Reservation], local: Callable[[frozenset[int]], frozenset[IpAddress]]) -> UdpPorts:
    """Return the published UDP ports of tasks. `local` returns the host's addresses of versions of IP."""
    addresses, found = cache(local), dict[int, frozenset[IpAddress]]()
    for port, lease in ((port, each.lease(port.nic)) for each in reservations for port in each.ports):
        if port.protocol is Protocol.UDP:
            if port.host_ip is None or port.host_ip == EVERY_IPV6:
                at = addresses(frozenset(each.version for each in destinations(port, lease)))
            else:
                at = frozenset((port.host_ip,))
            others = found.get(port.host_port)  # another task may publish it at another address
            found[port.host_port] = at if others is None else others | at
    return found
