"""The elements of the nftables tables, and the transactions that change them.

Networks, guests and published ports are elements of sets and maps. So the cost of a packet and of a change does not
grow with the number of tasks. The rules (`nft_chains`) depend on `Ruleset` alone.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from solo5_systemd.network import nft_rules
from solo5_systemd.network.model import Lease, Network, PortRequest, Reservation
from solo5_systemd.network.nft_rules import FAMILIES, FRAGMENTS, REFUSED, TABLE


@dataclass(frozen=True, kw_only=True)
class Element:
    """One element of a set or, with a value, of a map. As text, it follows `add` or `delete` in a transaction."""

    family: str
    name: str
    key: tuple[str, ...]
    value: tuple[str, ...] = ()

    def __str__(self) -> str:
        value = f" : {' . '.join(self.value)}" if self.value else ""
        return f"element {self.family} {TABLE} {self.name} {{ {' . '.join(self.key)}{value} }}"


@dataclass(frozen=True, kw_only=True)
class Ruleset:
    """The input from which both tables are made.

    Attributes:
        networks: the networks that are up.
        reservations: the reservations that are attached.
        forwards: the host forwarded packets before the first network was up; packets between other links are accepted.
    """

    networks: Sequence[Network] = ()
    reservations: Sequence[Reservation] = ()
    forwards: bool = False


def elements(ruleset: Ruleset) -> tuple[Element, ...]:
    """Return all elements of both tables."""
    return (
        *(element for network in ruleset.networks for element in network_elements(network, ruleset.networks)),
        *(element for reservation in ruleset.reservations for element in task_elements(reservation, ruleset.networks)),
    )


def network_elements(network: Network, networks: Sequence[Network]) -> tuple[Element, ...]:
    """Return the elements of a network; `networks` are all that are up, for its `reach`."""
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


def task_elements(reservation: Reservation, networks: Sequence[Network]) -> tuple[Element, ...]:
    """Return the elements of a task; `networks` are all that are up."""
    fragmenting = {network.name for network in networks if network.policy.fragments}
    return (
        *(element for lease in reservation.leases for element in _guest(lease, lease.network in fragmenting)),
        *(_published(port, reservation.lease(port.nic)) for port in reservation.ports),
    )


def replace(ruleset: Ruleset, *, owned: bool) -> str:
    """Return the transaction that replaces both tables, whatever their state."""
    made = nft_rules.tables(ruleset.networks, forwards=ruleset.forwards, owned=owned)
    return f"{remove(owned=owned)}\n{made}\n{add(elements(ruleset))}"


def change(before: Ruleset, after: Ruleset) -> str:
    """Return the transaction that changes the tables from `before` to `after`; the kernel's counters are kept."""
    old, new = elements(before), elements(after)
    removed, added = set(old) - set(new), set(new) - set(old)
    commands = [delete(each for each in old if each in removed)]
    limited = nft_rules.limited(after.networks)
    if nft_rules.limited(before.networks) != limited:
        commands.append(f"flush chain ip {TABLE} {nft_rules.LIMITED}")
        commands += [f"add rule ip {TABLE} {nft_rules.LIMITED} {rule}" for rule in limited]
    return "\n".join([*commands, add(each for each in new if each in added)]).strip()


def remove(*, owned: bool) -> str:
    """Return the transaction that removes both tables; it succeeds without them, too."""
    if owned:
        return "\n".join(f"destroy table {family} {TABLE}" for family in FAMILIES)
    # Added first, so that the deletion cannot fail: nftables 1.0.6 has no "destroy".
    return "\n".join(f"add table {family} {TABLE}\ndelete table {family} {TABLE}" for family in FAMILIES)


def add(elements: Iterable[Element]) -> str:
    """Return the transaction that adds these elements; idempotent."""
    return "\n".join(f"add {element}" for element in elements)


def delete(elements: Iterable[Element]) -> str:
    """Return the transaction that deletes these elements; it fails as a whole if one is missing."""
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
