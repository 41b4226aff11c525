"""The elements of our nftables, and the transactions that change these.

Networks, guests and published ports are elements of sets and maps, so that neither the cost of a packet nor that of a
change grows with the number of tasks. The few rules that differ from host to host depend on `Plan` alone (`chains`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from solo5_systemd.network import nft_chains
from solo5_systemd.network.model import Lease, Network, PortRequest, Reservation
from solo5_systemd.network.nft_chains import FAMILIES, FRAGMENTS, REFUSED, TABLE


@dataclass(frozen=True, kw_only=True)
class Element:
    """One element of a set, or of a map where it has a value."""

    family: str
    name: str
    key: tuple[str, ...]
    value: tuple[str, ...] = ()

    def __str__(self) -> str:
        value = f" : {' . '.join(self.value)}" if self.value else ""
        return f"element {self.family} {TABLE} {self.name} {{ {' . '.join(self.key)}{value} }}"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that our tables are made from.

    Attributes:
        networks: those that are up.
        reservations: those that are attached.
        forwards: the host forwarded packets before the first network was up: what passes between links that are not
            ours is no affair of ours.
    """

    networks: Sequence[Network] = ()
    reservations: Sequence[Reservation] = ()
    forwards: bool = False


def elements(plan: Plan) -> tuple[Element, ...]:
    """Return all elements of our tables."""
    return (
        *(element for network in plan.networks for element in elements_of(network, plan.networks)),
        *(element for reservation in plan.reservations for element in elements_for(reservation, plan.networks)),
    )


def elements_of(network: Network, networks: Sequence[Network]) -> tuple[Element, ...]:
    """What a network adds beside others that are up."""
    inside, bridge, policy = str(network.ipv4), _quoted(network.bridge), network.policy
    reached = [other.bridge for other in networks if other.name in policy.reach]
    paths = ([] if policy.isolated else [network.bridge]) + reached
    return (
        _member("bridges", bridge),
        _member("within", inside, inside),
        *((_member("masqueraded", inside),) if network.masquerade else ()),
        *(_member("paths", bridge, _quoted(other)) for other in paths),
        *((_member("routed", bridge),) if policy.routed else ()),
        *((_member("metadata", bridge),) if policy.metadata else ()),
        *(_member("services", bridge, port.protocol, str(port.port)) for port in dict.fromkeys(policy.host)),
    )


def _member(name: str, *key: str) -> Element:
    return Element(family="ip", name=name, key=key)


def elements_for(reservation: Reservation, networks: Sequence[Network]) -> tuple[Element, ...]:
    """What a task adds, on these networks."""
    fragmenting = {network.name for network in networks if network.policy.fragments}
    return (
        *(element for lease in reservation.leases for element in _guest(lease, lease.network in fragmenting)),
        *(_published(port, reservation.lease(port.nic)) for port in reservation.ports),
    )


def replace(plan: Plan, *, owned: bool) -> str:
    """The transaction after which our tables are exactly these, whatever they were."""
    made = nft_chains.tables(plan.networks, forwards=plan.forwards, owned=owned)
    return f"{remove(owned=owned)}\n{made}\n{add(elements(plan))}"


def change(before: Plan, after: Plan) -> str:
    """The transaction after which our tables are these, where they were exactly those: what the kernel counts stays."""
    old, new = elements(before), elements(after)
    gone, come = set(old) - set(new), set(new) - set(old)
    commands = [delete(each for each in old if each in gone)]
    limited = nft_chains.limited(after.networks)
    if nft_chains.limited(before.networks) != limited:
        commands.append(f"flush chain ip {TABLE} {nft_chains.LIMITED}")
        commands += [f"add rule ip {TABLE} {nft_chains.LIMITED} {rule}" for rule in limited]
    return "\n".join([*commands, add(each for each in new if each in come)]).strip()


def remove(*, owned: bool) -> str:
    """The transaction after which our tables are gone."""
    if owned:
        return "\n".join(f"destroy table {family} {TABLE}" for family in FAMILIES)
    # Added first, so that the deletion does not fail; nftables 1.0.6 has no "destroy".
    return "\n".join(f"add table {family} {TABLE}\ndelete table {family} {TABLE}" for family in FAMILIES)


def add(elements: Iterable[Element]) -> str:
    return "\n".join(f"add {element}" for element in elements)


def delete(elements: Iterable[Element]) -> str:
    """The transaction that takes these away; it fails as a whole where one is not there."""
    return "\n".join(f"delete {element}" for element in elements)


def _guest(lease: Lease, fragments: bool) -> tuple[Element, ...]:
    tap, address = _quoted(lease.tap), str(lease.ipv4.ip)
    return (
        Element(family="bridge", name="guests", key=(tap, lease.mac, address)),
        Element(family="bridge", name="reflected", key=(tap, tap)),
        *(() if fragments else (Element(family="bridge", name=FRAGMENTS, key=(address,)),)),
        _member("leased", address),
        _member(REFUSED, address),
    )


def _published(port: PortRequest, lease: Lease) -> Element:
    key = (port.protocol.value, str(port.host_port))
    target = (str(lease.ipv4.ip), str(port.port))
    if port.host_ip is None:
        return Element(family="ip", name="published", key=key, value=target)
    return Element(family="ip", name="published_at", key=(str(port.host_ip), *key), value=target)


def _quoted(link: str) -> str:
    return f'"{link}"'
