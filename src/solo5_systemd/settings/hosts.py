"""Names of machines that a guest gets with their addresses: `extra_hosts` of a job, `--add-host` of `solo5ctl run`."""

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.settings.resolver import hostname, other_machine

HOSTS_MAX = 64
"""Entries of a guest. All of its arguments have 8 KiB (`unit.placeholders.COMMAND_LINE_MAX`)."""

GATEWAY = "host-gateway"
"""In the place of an address, as for Docker: the gateway of the guest's primary NIC."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """A name, and its address; None: the gateway of the guest's primary NIC."""

    name: str
    address: IPv4Address | IPv6Address | None

    def __str__(self) -> str:
        return f"{self.name}:{self.address or GATEWAY}"


def host(text: str) -> Host:
    """Parse `NAME:ADDRESS`; an IPv6 address may be in brackets.

    Raises:
        InvalidRequestError: malformed, or no address of another machine.
    """
    name, _, place = text.partition(":")
    bare = place[1:-1] if place.startswith("[") and place.endswith("]") else place
    address = None if place == GATEWAY else other_machine(bare)
    if place != GATEWAY and address is None:
        raise InvalidRequestError(
            f"host {text[:200]!r} is not usable: expected a name and the address of another machine, such as "
            f"db:192.0.2.7 or db:2001:db8::7, or db:{GATEWAY}."
        )
    return Host(name=hostname(name), address=address)


def hosts(texts: Iterable[str]) -> tuple[Host, ...]:
    """Parse entries; one that is given twice counts once.

    Raises:
        InvalidRequestError: one is malformed, or there are too many.
    """
    given = tuple(texts)
    if len(given) > HOSTS_MAX:  # before any work that grows with them
        raise InvalidRequestError(f"there are {len(given)} hosts: expected at most {HOSTS_MAX}.")
    return tuple(dict.fromkeys(map(host, given)))
