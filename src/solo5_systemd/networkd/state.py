"""What the service does, told without D-Bus: reserve, attach, release, repair.

Files come before what they speak of and go after it: a service that is killed between any two lines finds, when it
is started again, a file for all that it may have made. `recover` then makes the kernel what the files say.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from ipaddress import IPv4Address

from solo5_systemd.errors import HostError, InvalidRequestError, NotFoundError, Solo5Error, TakenError
from solo5_systemd.names import NetworkName, TaskName
from solo5_systemd.network import links as netlink
from solo5_systemd.network import nft_elements, sysctls
from solo5_systemd.network.allocations import Book
from solo5_systemd.network.ipam import assign, choose_network, free_addresses
from solo5_systemd.network.lease_files import LeaseStore
from solo5_systemd.network.lease_recovery import salvage
from solo5_systemd.network.links import Links
from solo5_systemd.network.model import (
    Dropped,
    Holding,
    HoldingState,
    Lease,
    Network,
    NetworkOverview,
    NicRequest,
    PortRequest,
    Repair,
    Reservation,
)
from solo5_systemd.network.nft_elements import Element, Plan
from solo5_systemd.network.nft_tables import Tables
from solo5_systemd.network.port_conflicts import check_ports, check_reserved
from solo5_systemd.network.port_sockets import bound_ports
from solo5_systemd.networkd.held_ports import HeldPorts
from solo5_systemd.settings import NetworkSettings, Settings

RESERVATION_SECONDS = 60

_log = logging.getLogger(__name__)


class Keeper:
    """The state of the host's Solo5 networks. Not thread-safe: one thread calls it."""

    def __init__(
        self,
        *,
        store: LeaseStore,
        links: Links,
        tables: Tables,
        ports: HeldPorts,
        settings: Callable[[], Settings],
    ) -> None:
        self._store = store
        self._links = links
        self._tables = tables
        self._ports = ports
        self._settings = settings
        self._holdings: dict[TaskName, Holding] = {}
        self._reserved: dict[TaskName, Holding] = {}
        self._book = Book()
        self._networks: dict[NetworkName, Network] = {}
        self._up: set[NetworkName] = set()
        self._repairs: list[Repair] = []

    @property
    def holdings(self) -> Collection[Holding]:
        """As they are now; other threads than the writer's may ask for them."""
        return tuple(self._holdings.values())

    def networks(self) -> Sequence[Network]:
        """The networks in use."""
        return tuple(self._networks.values())

    def overview(self) -> Sequence[NetworkOverview]:
        """Every network, in use or only configured."""
        known = {settings.name: _configured(settings) for settings in self._settings().networks}
        dropped = self._tables.dropped() if self._up else Dropped()
        used = {network.name: self._in_use(network, dropped) for network in self.networks()}
        return sorted((known | used).values(), key=lambda network: network.name)

    def _in_use(self, network: Network, dropped: Dropped) -> NetworkOverview:
        leases = self._book.leases.get(network.name, 0)
        up, free = network.name in self._up, free_addresses(network.ipv4, leases)
        return NetworkOverview.of(network, up=up, leases=leases, free=free, dropped=dropped.within(network.ipv4))

    # -- one task ------------------------------------------------------------------------------------------------

    def reserve(self, task: TaskName, nics: Sequence[NicRequest], ports: Sequence[PortRequest]) -> Reservation:
        """Give a task what it asks for; nothing but files changes.

        Raises:
            InvalidRequestError: it can never be given so.
            TakenError: somebody else has it, or the task holds another reservation.
            HostError: the host cannot.
        """
        reservation, networks = self._plan(task, nics, ports)
        held = self._holdings.get(task)
        if held is None or held.state is HoldingState.RESERVED:
            self._ports.hold(ports)
            expires = now() + RESERVATION_SECONDS
            try:
                for network in networks:
                    self._store.save_network(network)
                    self._networks[network.name] = network
                self._save(
                    Holding(reservation=reservation, nics=tuple(nics), state=HoldingState.RESERVED, expires=expires)
                )
            except Solo5Error:
                if held is None:
                    self._ports.release(ports)
                raise
        return reservation

    def preview(
        self, task: TaskName, nics: Sequence[NicRequest], ports: Sequence[PortRequest]
    ) -> tuple[Reservation, Sequence[Element]]:
        """What `reserve` would give, and what `attach` would then add to our tables."""
        reservation, networks = self._plan(task, nics, ports)
        before = self._filter()
        known = set(nft_elements.elements(before))
        after = replace(before, networks=(*before.networks, *networks), reservations=(reservation,))
        return reservation, tuple(element for element in nft_elements.elements(after) if element not in known)

    def attach(self, task: TaskName) -> Reservation:
        """Make what the task has reserved; forgetting older flows to its ports is the caller's.

        Raises:
            NotFoundError: it has reserved nothing.
            HostError: the kernel refused; what was made is gone again.
        """
        holding = self._holdings.get(task)
        if holding is None or holding.state is HoldingState.RELEASING:
            raise NotFoundError(
                f"task {task} has no reservation: expected one made less than {RESERVATION_SECONDS} s ago.",
                "Start the task again.",
            )
        self.repair()
        if holding.state is HoldingState.RESERVED:
            try:
                self._attach(holding)
            except Solo5Error:
                self._undo_attach(holding.reservation)
                raise
        elif holding.expires <= now():  # of a start that has its unit yet to come, as the first one had
            self._save(replace(holding, expires=now() + RESERVATION_SECONDS))
        return holding.reservation

    def begin_release(self, task: TaskName) -> Reservation:
        """Take back all but taps and flows: deleting these takes a while and is the caller's."""
        holding = self._holdings.get(task)
        if holding is None:
            return Reservation(task=task)
        self.repair()
        attached = holding.state is HoldingState.ATTACHED
        self._save(replace(holding, state=HoldingState.RELEASING))
        if attached:
            self._take_from_tables(self._elements_for(holding.reservation))
        self._ports.release(holding.reservation.ports)
        return holding.reservation

    def end_release(self, task: TaskName) -> None:
        """Forget a task whose taps are gone, and networks that nobody uses any more."""
        self._store.remove_holding(task)
        self._reserved.pop(task, None)
        holding = self._holdings.pop(task, None)
        if holding is not None:
            self._book.strike(holding.reservation)
        self._retire_networks()

    # -- the whole -----------------------------------------------------------------------------------------------

    def recover(self) -> Sequence[TaskName]:
        """Make the kernel what the files say, at the start; the tasks whose release is to be finished."""
        self._networks = self._store.networks()
        for holding in self._store.holdings().values():
            self._keep(holding)
        self._complete_networks()
        self._read_policies()
        self._salvage()
        self._ports.keep(self._published())
        self._up = {network.name for network in self.networks() if self._links.is_ours(network)}
        stray = self._links.taps().keys() - {lease.tap for _, lease in self._attached_leases()}
        if stray:
            _log.info("Removing taps that no attached task holds: %s.", ", ".join(sorted(stray)))
            netlink.delete_links(stray)
        for name in {lease.network for _, lease in self._attached_leases()}:
            self._bring_up(self._networks[name])
        if self._up:
            self._tables.replace(self._filter())
            self._repair_links()
            for _, lease in self._attached_leases():
                self._links.isolate(lease, isolated=self._networks[lease.network].policy.isolated)
        else:
            sysctls.restore(self._store.sysctls())  # of a start that was killed before its bridge was made
        self._retire_networks()
        return tuple(h.reservation.task for h in self.holdings if h.state is HoldingState.RELEASING)

    def repair(self) -> None:
        """Put back what another program took away from us."""
        if not self._up:
            return
        if not self._tables.are_intact(self._elements):
            self._tables.replace(self._filter())
            tasks = [holding.reservation.task for holding in self._attached()]
            self._repaired(tasks, "another program changed our nftables: ip solo5 and bridge solo5 are rebuilt")

    def take_repairs(self) -> Sequence[Repair]:
        """What was put back since this was asked last."""
        repairs, self._repairs = self._repairs, []
        return repairs

    def repair_links(self, removed: frozenset[str] | None) -> None:
        """Put back links of ours among those removed; None: look at all."""
        if removed is None or any(map(self._should_stand, removed)):
            self._repair_links()

    def _should_stand(self, link: str) -> bool:
        holding = self._holdings.get(self._book.taps.get(link, TaskName("")))
        attached = holding is not None and holding.state is HoldingState.ATTACHED
        return attached or any(network.bridge == link for network in self.networks() if network.name in self._up)

    def hold_ports(self) -> None:
        """Bind published ports that could not be bound when the service started, where they are free by now."""
        self._ports.retry(self._published())

    def has_flows(self, reservation: Reservation) -> Sequence[IPv4Address]:
        """The addresses of a task from which connections may still be tracked."""
        addresses = (lease.ipv4.ip for lease in reservation.leases)
        return [address for address in addresses if self._tables.has_flows(address)]

    def expired(self) -> Sequence[TaskName]:
        """The tasks whose reservation nobody picked up."""
        return tuple(task for task, holding in list(self._reserved.items()) if holding.expires <= now())

    def is_due(self, task: TaskName) -> bool:
        """The task has neither attached nor reserved for so long that it is to have a unit by now."""
        holding = self._holdings.get(task)
        return holding is not None and holding.expires <= now()

    def next_expiry(self) -> int | None:
        """The second of CLOCK_BOOTTIME in which the next reservation ends; None where there is none."""
        return min((holding.expires for holding in list(self._reserved.values())), default=None)

    def _plan(
        self, task: TaskName, nics: Sequence[NicRequest], ports: Sequence[PortRequest]
    ) -> tuple[Reservation, Sequence[Network]]:
        """What the task has already, or is to have, and the networks that are new with it."""
        held = self._holdings.get(task)
        if held is None:
            return self._choose(task, nics, ports)
        if held.nics == tuple(nics) and held.reservation.ports == tuple(ports):
            return held.reservation, ()
        raise TakenError(
            f"task {task} holds another reservation: expected the same request or another name.",
            f"`solo5ctl rm {task}` gives it back.",
        )

    def _choose(
        self, task: TaskName, nics: Sequence[NicRequest], ports: Sequence[PortRequest]
    ) -> tuple[Reservation, Sequence[Network]]:
        names = [nic.nic for nic in nics]
        check_reserved(ports, self._settings() if ports else Settings())
        bound = bound_ports() if ports else ()
        local = self._links.local_addresses() if any(port.host_ip for port in ports) else ()
        check_ports(ports, names, self._book, bound, local)
        new = self._new_networks(nics)
        leases = assign(task, nics, (*self.networks(), *new), self._book, lambda link: bool(netlink.index(link)))
        return Reservation(task=task, leases=leases, ports=tuple(ports)), new

    def _new_networks(self, nics: Iterable[NicRequest]) -> Sequence[Network]:
        names = dict.fromkeys(nic.network for nic in nics if nic.network not in self._networks)
        if not names:
            return ()
        settings = self._settings()
        new: list[Network] = []
        routed = tuple(self._links.destinations(ours=[network.bridge for network in self.networks()]))
        for name in names:
            known = settings.network(name)
            if known is None:
                raise InvalidRequestError(
                    f"network {name} does not exist: expected one of "
                    f"{', '.join(network.name for network in settings.networks)}.",
                    f"A table [network.{name}] below /etc/solo5 makes it.",
                )
            reserved = [other.ipv4 for other in settings.networks if other.ipv4 and other.name != name]
            new.append(choose_network(known, (*self.networks(), *new), (*routed, *reserved)))
        return new

    def _attach(self, holding: Holding) -> None:
        reservation = holding.reservation
        for lease in reservation.leases:
            self._bring_up(self._networks[lease.network])
        for lease in reservation.leases:
            self._make_tap(reservation.task, lease)
        self._add_to_tables(reservation)
        self._save(replace(holding, state=HoldingState.ATTACHED, expires=now() + RESERVATION_SECONDS))

    def _add_to_tables(self, reservation: Reservation) -> None:
        try:
            self._tables.add(self._elements_for(reservation))
        except HostError:  # another program may have taken them away since we looked
            plan = self._filter()
            self._tables.replace(replace(plan, reservations=(*plan.reservations, reservation)))

    def _take_from_tables(self, elements: Sequence[Element]) -> None:
        try:
            self._tables.delete(elements)
        except HostError:  # as above
            self._tables.replace(self._filter())

    def _undo_attach(self, reservation: Reservation) -> None:
        if self._up:
            self._tables.replace(self._filter())
        netlink.delete_links(lease.tap for lease in reservation.leases)

    def _bring_up(self, network: Network) -> None:
        if network.name in self._up:
            return
        self._remember_sysctls()
        before = self._filter()
        self._up.add(network.name)
        try:
            self._tables.change(before, self._filter())  # first: they stand before the host forwards anything
            sysctls.forward()
            self._links.make_bridge(network)
        except Solo5Error:
            self._up.discard(network.name)
            raise

    def _remember_sysctls(self) -> None:
        if not self._store.sysctls():
            self._store.save_sysctls(sysctls.current())

    def _retire_networks(self) -> None:
        idle = [network for name, network in self._networks.items() if not self._book.leases.get(name)]
        if not idle:
            return
        netlink.delete_links(network.bridge for network in idle if self._links.is_ours(network))
        before = self._filter()
        self._up -= {network.name for network in idle}
        if self._up:
            self._tables.change(before, self._filter())
        else:
            sysctls.restore(self._store.sysctls())  # first, as above
            self._tables.remove()
            self._store.remove_sysctls()
        for network in idle:
            self._store.remove_network(network.name)
            del self._networks[network.name]

    def _repair_links(self) -> None:
        """Bridges before taps; a tap that a tender held when it was deleted is lost to it."""
        for network in self.networks():
            if network.name in self._up and not self._links.is_ours(network):
                self._links.make_bridge(network)
                tasks = {task for task, lease in self._attached_leases() if lease.network == network.name}
                what = f"bridge {network.bridge} of network {network.name} was gone: it is rebuilt"
                self._repaired(sorted(tasks), what)
        for task, lease in self._attached_leases():
            if not self._links.is_in_place(lease):
                self._make_tap(task, lease)
                what = (
                    f"tap {lease.tap} was gone or off its bridge: it is put back; if it was deleted, task {task} has "
                    f"lost its NIC {lease.nic} until it is started again"
                )
                self._repaired([task], what)

    def _repaired(self, tasks: Sequence[TaskName], what: str) -> None:
        _log.warning("The network was repaired: %s.", what)
        self._repairs.append(Repair(tasks=tasks, what=what))

    def _salvage(self) -> None:
        """Rebuild damaged lease files from the kernel."""
        damaged = [task for task in self._store.damaged_tasks() if task not in self._holdings]
        if not damaged:
            return
        bridges = {netlink.index(network.bridge): network for network in self.networks()}
        taps = {
            name: (tap.alias, bridges[tap.master]) for name, tap in self._links.taps().items() if tap.master in bridges
        }
        elements = self._tables.elements()
        for task in damaged:
            holding = salvage(task, taps, elements)
            if holding is None:
                _log.warning("Nothing in the kernel belongs to task %s, whose lease file is damaged.", task)
                self._store.remove_holding(task)
            else:
                _log.warning("The lease of task %s is rebuilt from the kernel.", task)
                self._save(holding)

    def _complete_networks(self) -> None:
        """A lease tells enough of its network to do without the network's own file."""
        for holding in self.holdings:
            for lease in holding.reservation.leases:
                if lease.network not in self._networks:
                    network = Network(
                        name=lease.network,
                        bridge=lease.bridge,
                        ipv4=lease.ipv4.network,
                        gateway4=lease.gateway4,
                        mtu=lease.mtu,
                        masquerade=True,
                    )
                    self._store.save_network(network)
                    self._networks[lease.network] = network

    def _attached_leases(self) -> Sequence[tuple[TaskName, Lease]]:
        return [(held.reservation.task, lease) for held in self._attached() for lease in held.reservation.leases]

    def _attached(self) -> Sequence[Holding]:
        return [holding for holding in self.holdings if holding.state is HoldingState.ATTACHED]

    def _make_tap(self, task: TaskName, lease: Lease) -> None:
        self._links.make_tap(task, lease, isolated=self._networks[lease.network].policy.isolated)

    def _filter(self) -> Plan:
        return Plan(
            networks=[network for network in self.networks() if network.name in self._up],
            reservations=[held.reservation for held in self._attached()],
            forwards=sysctls.forwards(self._store.sysctls()),
        )

    def _elements_for(self, reservation: Reservation) -> Sequence[Element]:
        return nft_elements.elements_for(reservation, self.networks())

    def _elements(self) -> Sequence[Element]:
        return nft_elements.elements(self._filter())

    def _published(self) -> Sequence[PortRequest]:
        live = (held for held in self.holdings if held.state is not HoldingState.RELEASING)
        return [port for held in live for port in held.reservation.ports]

    def _read_policies(self) -> None:
        """Apply changed settings to networks in use: a restart of the service is what an operator needs for that."""
        try:
            settings = self._settings()
        except Solo5Error as error:
            _log.warning("Networks in use keep what they let through, since the settings cannot be read: %s", error)
            return
        for name, network in list(self._networks.items()):
            known = settings.network(name)
            if known is not None and known.policy != network.policy:
                self._networks[name] = replace(network, policy=known.policy)
                self._store.save_network(self._networks[name])

    def _save(self, holding: Holding) -> None:
        self._store.save_holding(holding)
        self._keep(holding)

    def _keep(self, holding: Holding) -> None:
        task = holding.reservation.task
        if task not in self._holdings:
            self._book.enter(holding.reservation)
        self._holdings[task] = holding
        if holding.state is HoldingState.RESERVED:
            self._reserved[task] = holding
        else:
            self._reserved.pop(task, None)


def _configured(settings: NetworkSettings) -> NetworkOverview:
    return NetworkOverview.of(settings, free=free_addresses(settings.ipv4, 0) if settings.ipv4 else 0)


def now() -> int:
    """Seconds since boot, sleep included."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME))
