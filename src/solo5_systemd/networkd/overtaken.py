"""The networks whose packets for guests are taken by routes of other programs: found, reported, and their end."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from ipaddress import IPv4Network, IPv6Network

from solo5_systemd.names import NetworkName, TaskName
from solo5_systemd.network import links
from solo5_systemd.network.model import IpAddress, LeaseRecord, LeaseState, Network, Repair
from solo5_systemd.network.overtaken import ForeignRoute, overtakes, sentence
from solo5_systemd.network.routes import Routes

_Key = tuple[NetworkName, ForeignRoute]
_Guests = Mapping[IpAddress, TaskName]


class OvertakenNetworks:
    """What was found so far. Not thread-safe.

    It changes no route: a program whose destinations overlap a network would lose them, without a reason that its
    operator could see.
    """

    def __init__(self) -> None:
        self._routes: Routes | None = None
        self._found: Mapping[_Key, _Guests] = {}

    @property
    def any(self) -> bool:
        """Whether packets for a guest are taken; safe to read in any thread."""
        return bool(self._found)

    def check(self, networks: Iterable[Network], records: Collection[LeaseRecord]) -> Sequence[Repair]:
        """Look up the route of each guest; return what was not found before, and what has ended."""
        before, named = self._found, {network.name: network for network in networks if network.join is None}
        self._found = self._look_up(named, records)
        attached = {record.reservation.task for record in records if record.state is LeaseState.ATTACHED}
        return [*_new(self._found, before, named), *_ended(before, self._found, attached)]

    def _look_up(
        self, named: Mapping[NetworkName, Network], records: Collection[LeaseRecord]
    ) -> Mapping[_Key, _Guests]:
        if self._routes is None:
            self._routes = Routes()
        found: dict[_Key, dict[IpAddress, TaskName]] = {}
        indexes = {name: links.index(network.bridge) for name, network in named.items()}
        for record in records:
            for lease in record.reservation.leases if record.state is LeaseState.ATTACHED else ():
                for address in lease.addresses if lease.network in named else ():
                    route = self._routes.foreign(address, indexes[lease.network])
                    if route is not None and overtakes(route, _inside(named[lease.network], address)):
                        found.setdefault((lease.network, route), {})[address] = record.reservation.task
        return found


def _new(
    found: Mapping[_Key, _Guests], before: Mapping[_Key, _Guests], named: Mapping[NetworkName, Network]
) -> Iterable[Repair]:
    for (name, route), guests in found.items():
        new = {address: task for address, task in guests.items() if address not in before.get((name, route), {})}
        for version in {address.version for address in new}:
            addresses = sorted(address for address in new if address.version == version)
            network = named[name]
            what = sentence(name, network.bridge, _inside(network, addresses[0]), route, addresses)
            yield Repair(tasks=sorted({new[address] for address in addresses}), what=what)


def _ended(
    before: Mapping[_Key, _Guests], found: Mapping[_Key, _Guests], attached: Collection[TaskName]
) -> Iterable[Repair]:
    still = {address for guests in found.values() for address in guests}
    for (name, route), guests in before.items():
        tasks = {task for address, task in guests.items() if address not in still and task in attached}
        if tasks:
            yield Repair(tasks=sorted(tasks), what=f"{route} takes the packets for guests of network {name} no longer")


def _inside(network: Network, address: IpAddress) -> IPv4Network | IPv6Network:
    inside = network.ipv4 if address.version == 4 else network.ipv6
    assert inside is not None, "a leased address is of a range"  # noqa: S101 - for mypy
    return inside
