"""Name servers, search domains, NTP servers and names of other machines: by these a guest finds them, and the time.

A job or operator sets them, and resolv.conf(5) has those of the host.
"""

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Annotated, TypeVar

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.settings.records import texts

T = TypeVar("T")

SERVERS_MAX = 8
"""Name servers of a guest, and its NTP servers. Resolvers of C libraries use three."""

SEARCH_MAX = 6
"""Search domains of a guest: the limit of resolv.conf(5) before glibc 2.26."""

HOSTNAME_MAX = 253
"""Characters of a host name or search domain, without a dot at the end (RFC 1035)."""

HOSTS_MAX = 64
"""Entries of a guest. All of its arguments have 8 KiB (`task.placeholders.COMMAND_LINE_MAX`)."""

GATEWAY = "host-gateway"
"""In the place of an address, as for Docker: the gateway of the guest's primary NIC."""

_LABEL = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_DOMAIN = rf"{_LABEL}(\.{_LABEL})*"  # compiled at its first use, for startup time
_BROADCAST = IPv4Address("255.255.255.255")
_STUB = r"127\.0\.0\.5[34]"


def _each(texts: Iterable[str], parse: Callable[[str], T], most: int, what: str) -> tuple[T, ...]:
    given = tuple(texts)
    if len(given) > most:  # before any work that grows with them
        raise InvalidRequestError(f"there are {len(given)} {what}: expected at most {most}.")
    return tuple(dict.fromkeys(map(parse, given)))


def name_servers(given: Iterable[str]) -> tuple[IPv4Address | IPv6Address, ...]:
    """Parse name servers; raises InvalidRequestError for a malformed one, and for too many."""
    return _each(given, partial(_server, "name server"), SERVERS_MAX, "name servers")


def ntp_servers(given: Iterable[str]) -> tuple[IPv4Address | IPv6Address, ...]:
    """Parse NTP servers; raises as `name_servers`."""
    return _each(given, partial(_server, "NTP server"), SERVERS_MAX, "NTP servers")


def search_domains(given: Iterable[str]) -> tuple[str, ...]:
    """Parse search domains; raises as `name_servers`."""
    return _each(given, lambda text: hostname(text, "search domain"), SEARCH_MAX, "search domains")


SERVERS, SEARCH, NTP = texts(name_servers), texts(search_domains), texts(ntp_servers)


@dataclass(frozen=True, kw_only=True)
class Resolver:
    """Name servers, in the order of their use, search domains, and NTP servers; empty: not set."""

    servers: Annotated[tuple[IPv4Address | IPv6Address, ...], SERVERS] = ()
    search: Annotated[tuple[str, ...], SEARCH] = ()
    ntp: Annotated[tuple[IPv4Address | IPv6Address, ...], NTP] = ()

    def __or__(self, other: "Resolver") -> "Resolver":
        """Return this resolver, with what it does not set taken from another."""
        return Resolver(**{name: own or getattr(other, name) for name, own in vars(self).items()})


UNSET = Resolver()


def resolver(servers: Iterable[str], search: Iterable[str]) -> Resolver:
    """Parse name servers and search domains; raises as `name_servers`."""
    return Resolver(servers=name_servers(servers), search=search_domains(search))


def _server(what: str, text: str) -> IPv4Address | IPv6Address:
    address = other_machine(text)
    if address is None:
        raise InvalidRequestError(
            f"{what} {text[:80]!r} is not usable: expected the address of another machine, such as 9.9.9.9 or "
            "2620:fe::fe."
        )
    return address


def other_machine(text: str) -> IPv4Address | IPv6Address | None:
    """Return an address by which a guest can reach another machine; None for any other text."""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and (address.is_link_local or address.scope_id or address.ipv4_mapped):
        return None  # an argument has no link, and a guest no IPv4 in IPv6
    is_none = address.is_loopback or address.is_unspecified or address.is_multicast or address == _BROADCAST
    return None if is_none else address


def reachable(found: Resolver, versions: Collection[int]) -> Resolver:
    """Return a resolver with the servers that a guest has the addresses for.

    Args:
        versions: of IP, 4 or 6 or both: those of which the guest has addresses.

    Raises:
        InvalidRequestError: none is left.
    """
    servers = tuple(server for server in found.servers if server.version in versions)
    if found.servers and not servers:
        named, other, own = ", ".join(map(str, found.servers)), *((6, 4) if 4 in versions else (4, 6))
        raise InvalidRequestError(
            f"name servers {named} have IPv{other} addresses only, and no network of the task has IPv{other}: expected "
            f"an IPv{own} address among them.",
            "Add one, or set network.NAME.ipv6 = true in /etc/solo5." if other == 6 else "Add one.",
        )
    return replace(found, servers=servers)


def hostname(text: str, what: str = "host name") -> str:
    """Parse a host name, or another domain name, without a dot at its end; raises InvalidRequestError."""
    plain = text.removesuffix(".")
    if not _is_domain(plain):
        raise InvalidRequestError(
            f"{what} {text[:80]!r} is not a domain name: expected labels of at most 63 letters, digits, '-' and '_', "
            f"{HOSTNAME_MAX} characters in all, such as web.example.org."
        )
    return plain


def _is_domain(text: str) -> bool:
    return len(text) <= HOSTNAME_MAX and re.fullmatch(_DOMAIN, text, re.ASCII) is not None


def parse_resolv_conf(text: str) -> tuple[Resolver, bool]:
    """Return what guests can use of resolv.conf(5), and whether it has the stub of systemd-resolved.

    Lines that are not valid, and addresses of this host itself or of one link, are skipped: the file is not the job's.
    """
    servers: list[IPv4Address | IPv6Address] = []
    search: list[str] = []
    stub = False
    for line in text.splitlines():
        keyword, *words = line.split() or [""]
        if keyword == "nameserver" and words:
            address = other_machine(words[0])
            stub = stub or re.fullmatch(_STUB, words[0], re.ASCII) is not None
            servers += [address] if address is not None else []
        elif keyword in ("search", "domain"):  # the last one counts
            search = [plain for word in words if _is_domain(plain := word.removesuffix("."))]
    found = Resolver(
        servers=tuple(dict.fromkeys(servers))[:SERVERS_MAX], search=tuple(dict.fromkeys(search))[:SEARCH_MAX]
    )
    return found, stub


def without(found: Resolver, networks: Iterable[IPv4Network | IPv6Network]) -> Resolver:
    """Return a resolver without the servers in some networks."""
    closed = tuple(networks)
    servers = tuple(server for server in found.servers if not any(server in network for network in closed))
    return replace(found, servers=servers)


@dataclass(frozen=True, kw_only=True)
class Host:
    """A name, and its address; None: the gateway of the guest's primary NIC."""

    name: str
    address: IPv4Address | IPv6Address | None

    def __str__(self) -> str:
        return f"{self.name}:{self.address or GATEWAY}"


def host(text: str) -> Host:
    """Parse `NAME:ADDRESS`; an IPv6 address may be in brackets. Raises InvalidRequestError."""
    name, _, place = text.partition(":")
    bare = place[1:-1] if place.startswith("[") and place.endswith("]") else place
    address = None if place == GATEWAY else other_machine(bare)
    if place != GATEWAY and address is None:
        raise InvalidRequestError(
            f"host {text[:200]!r} is not usable: expected a name and the address of another machine, such as "
            f"db:192.0.2.7 or db:2001:db8::7, or db:{GATEWAY}."
        )
    return Host(name=hostname(name), address=address)


def hosts(given: Iterable[str]) -> tuple[Host, ...]:
    """Parse entries, each once; raises as `name_servers`."""
    return _each(given, host, HOSTS_MAX, "hosts")
