"""Repairs of what other programs change under running guests: bridges, taps, sysctls, nftables tables."""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial

from solo5_systemd.base.errors import Solo5Error
from solo5_systemd.base.names import NetworkName, TaskName, task_namespace
from solo5_systemd.network import links, namespaces, sysctls
from solo5_systemd.network.endpoints import UNREPAIRED
from solo5_systemd.network.model import Lease, LeaseState
from solo5_systemd.network.netlink import link_index
from solo5_systemd.network.overview import Repair
from solo5_systemd.networkd.bridges import Bridges
from solo5_systemd.settings.network_policy import Network

_log = logging.getLogger(__name__)

RESTORED_MAX = 10
"""How often a task's taps are restored from one check of all to the next.

A tender may delete its tap (TUNSETPERSIST) as often as there is a new one, and the macvlan with it.
"""


def mistake(lease: Lease, address: str) -> str:
    """Return the message about a guest without its leased address.

    `address`: that from which it sends; empty: it requests one by DHCP.
    """
    if address:
        return (
            f"NIC {lease.nic} sends from {address}, not from its lease {lease.first_address}, and is not "
            "heard: is {mirage} missing among the arguments of the guest?"
        )
    return (
        f"NIC {lease.nic} requests an address by DHCP, which network {lease.network} does not serve: set "
        f"dhcp = true for it, or pass {lease.first_address} by {{mirage}}"
    )


class Repairs:
    """Compares the kernel's state of one network namespace with the leases, and restores it. Not thread-safe."""

    def __init__(self, bridges: Bridges, report: Callable[[Repair], None]) -> None:
        self._links, self._tables, self._bridges, self._leases = bridges.links, bridges.tables, bridges, bridges.leases
        self._report = report
        self._missing: frozenset[NetworkName] = frozenset()
        self._restored: Counter[TaskName] = Counter()
        self._reported: set[tuple[str, int, bool]] = set()
        self._checked: Mapping[str, object] = {}

    def report_unrepaired(self, task: TaskName, what: str) -> None:
        """Log and record what only an operator can repair."""
        self._add([task], f"{UNREPAIRED}{what}")

    def _add(self, tasks: Sequence[TaskName], what: str) -> None:
        # A mistake of a guest is none of the host's.
        level = logging.INFO if what.startswith(f"{UNREPAIRED}NIC ") else logging.WARNING
        _log.log(level, "network %s%s", "" if what.startswith(UNREPAIRED) else "repaired: ", what)
        repair = Repair(tasks=tuple(tasks), what=what)
        self._bridges.store.record_repair(repair)
        self._report(repair)

    # -- tables and sysctls --------------------------------------------------------------------------------------

    def repair_tables(self, *, verify: bool = False) -> None:
        """Rebuild the nftables tables if another program has changed them; with `verify` they are listed for that."""
        if self._bridges.up and not self._tables.are_intact(self._bridges.elements, verify=verify):
            self._bridges.replace_tables()
            tasks = [record.reservation.task for record in self._leases.attached()]
            self._add(tasks, "another program changed nftables: tables ip solo5 and bridge solo5 are rebuilt")

    def repair_unannounced(self) -> None:
        """Restore that of whose changes there may be no message: sysctls of bridges, links in tasks' own namespaces.

        Of taps that are as they were at the last check, nothing is read but their part of two dumps.
        """
        self._restored.clear()
        if self._leases.attached():
            states, checked = self._links.tap_states(), self._checked
            as_before = {tap for tap, state in states.items() if checked.get(tap) == state}
            self._checked = {}  # until the repair has succeeded, the next check reads all
            self.repair_links({task for task, lease in self._leases.attached_leases() if lease.tap not in as_before})
            self._checked = {} if self._missing else states  # taps without their bridge are not whole
        elif self._bridges.up:
            self.repair_links()

    def is_expected(self, link: str) -> bool:
        """Return whether a link belongs to a task that is not being released, or is a bridge; safe in any thread.

        Also for the sysctls of forwarding, while they are needed.
        """
        if link == sysctls.IP_FORWARD:
            return self._bridges.forwarding
        if link == sysctls.IPV6_FORWARDING:
            return self._bridges.forwarding6
        record = self._leases.of(link)
        if record is not None:
            return record.state is not LeaseState.RELEASING
        return self._bridges.is_own(link)

    # -- links ---------------------------------------------------------------------------------------------------

    def repair_changed(self, changed: frozenset[str] | None) -> None:
        """Restore the bridges and taps among these changed links, and forwarding; None checks all."""
        if self._bridges.up:
            for change in self._bridges.follow_routers():
                _log.info("%s", change)
        for what, version in self._bridges.set_sysctls():
            of_own = [(task, lease) for task, lease in self._leases.attached_leases() if not self._bridges.joins(lease)]
            tasks = sorted({task for task, lease in of_own if any(each.version == version for each in lease.addresses)})
            self._add(tasks, f"{what}: it is set again")
        # A change of forwarding alone concerns no link.
        if changed is None or any(map(self.is_expected, changed - {sysctls.IP_FORWARD, sysctls.IPV6_FORWARDING})):
            self.repair_links()

    def repair_links(self, only: Collection[TaskName] | None = None) -> None:
        """Recreate bridges, then taps, of all tasks or of some.

        Raises:
            HostError, TakenError: the first error. One link that cannot be made, such as a bridge whose name another
                program has taken, prevents no other repair.
        """
        errors: list[Solo5Error] = []
        for step in self._steps(only):
            try:
                step()
            except Solo5Error as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _steps(self, only: Collection[TaskName] | None) -> Iterator[Callable[[], object]]:
        bridges, leases, has_bridge = self._bridges, self._leases.attached_leases(), self._links.has_bridge
        usable = {network.name: bridges.is_usable(network) for network in bridges.joined}
        self._missing = frozenset(name for name in usable if not usable[name])
        waiting = [lease for record in self._leases.waiting() for lease in record.reservation.leases]
        every = {lease.bridge: lease for lease in (*waiting, *(lease for _, lease in leases))}
        # Of networks and segments that an earlier attempt or process has not made.
        yield from (partial(bridges.bring_up, lease) for lease in every.values())
        yield from (partial(self._repair_bridge, network) for network in bridges.own)
        usable |= {network.name: has_bridge(network) for network in bridges.own}  # by now; else it is another link
        segments = [(each, name) for each, name in bridges.segments.items() if usable[name]]
        yield from (partial(self._repair_segment, *each) for each in segments)
        further = {each for each, name in segments if has_bridge(bridges.networks[name], each)}
        for task, lease in leases:
            network = bridges.networks[lease.network]
            if usable.get(network.name) and (lease.bridge == network.bridge or lease.bridge in further):
                if only is None or task in only:
                    yield partial(self._repair_tap, task, lease, network)
                if lease.limits.routes and network.join is None:
                    yield partial(self._repair_routes, task, lease, network)

    def _repair_segment(self, segment: str, name: NetworkName) -> None:
        network = self._bridges.networks[name]
        if not self._links.has_segment(network, segment):
            self._links.make_segment(network, segment)
            tasks = {task for task, lease in self._leases.attached_leases() if lease.bridge == segment}
            self._add(sorted(tasks), f"bridge {segment} of network {name} was incomplete: it is restored")

    def _repair_tap(self, task: TaskName, lease: Lease, network: Network) -> None:
        wanted = self._restored[task] < RESTORED_MAX and not self._links.has_tap(task, lease, network)
        if wanted and not self._is_gone(task, lease):
            self._links.make_tap(task, lease, network)
            self._restored[task] += 1
            state = "was missing, down or not on its bridge, or had lost a setting"
            self._add([task], f"tap {lease.tap} {state}: it is restored")

    def _repair_routes(self, task: TaskName, lease: Lease, network: Network) -> None:
        if self._links.route_behind(lease, network, lease.limits.routes):
            routes = ", ".join(map(str, lease.limits.routes))
            self._add([task], f"a route to {routes} was missing: it is restored")

    def _is_gone(self, task: TaskName, lease: Lease) -> bool:
        """Return whether a tap has gone with its namespace: its task is no more, and the release is to come."""
        return not link_index(lease.tap) and not namespaces.is_mounted(task_namespace(task))

    def _repair_bridge(self, network: Network) -> None:
        if not self._links.is_whole(network):
            state = "was down or had lost a setting" if self._links.has_bridge(network) else "was missing"
            self._bridges.make(network)
            what = f"bridge {network.bridge} of network {network.name} {state}: it is restored"
            tasks = {task for task, lease in self._leases.attached_leases() if lease.network == network.name}
            self._add(sorted(tasks), what)

    # -- joined bridges ------------------------------------------------------------------------------------------

    @property
    def awaits_bridge(self) -> bool:
        """Whether a joined bridge is missing under a running guest; safe to read in any thread."""
        return bool(self._missing)

    def repair_joined(self) -> None:
        """Put taps back on bridges that were missing, and have been made again."""
        networks = self._bridges.networks
        if any(self._bridges.is_usable(networks[name]) for name in self._missing if name in networks):
            self.repair_links()
        self._missing &= networks.keys()

    # -- guests without their leased address ----------------------------------------------------------------------

    def report_mistakes(self) -> None:
        """Report the guests that send from another address than the leased one, or request one that no DHCP server has.

        Each is reported once after each attach. The cost grows with their number, not with that of all guests.
        """
        if not self._bridges.up:
            return
        reported, self._reported = self._reported, set()
        for tap, addresses in self._tables.mistaken().items():
            record = self._leases.of(tap)
            # The kernel keeps the entries of released taps for a while.
            if record is None or record.state is not LeaseState.ATTACHED:
                continue
            lease = next(each for each in record.reservation.leases if each.tap == tap)
            served = self._bridges.networks[lease.network].policy.dhcp
            for address in addresses:
                key = (tap, record.expires, address == "")
                if address not in map(str, lease.addresses) and (address or not served):
                    if key not in reported | self._reported:
                        self.report_unrepaired(record.reservation.task, mistake(lease, address))
                    self._reported.add(key)

    # -- taps without a lease ------------------------------------------------------------------------------------

    def remove_orphaned_taps(self) -> None:
        """Delete the taps without an attached lease, such as after a deletion that failed."""
        orphans = self._links.taps() - {lease.tap for _, lease in self._leases.attached_leases()}
        if orphans:
            _log.info("removing orphaned taps: %s", ", ".join(sorted(orphans)))
            links.delete_links(orphans)
