"""Egress: the destinations to which a guest may open connections.

    10.0.0.0/8:5432/tcp       a range, one port, one protocol
    192.0.2.7                 an address, every port and protocol
    192.0.2.7:53              an address, one port of TCP and of UDP
    10.1.0.0/16:8000-8100/tcp
    10.2.0.0/16/icmp          a range, ping
    [2001:db8::/32]:443/tcp
    2001:db8::/32             a range of IPv6; brackets are for its ports

`none` alone is the empty list: no connection. Names are no destinations: a guest resolves them itself, and an address
that a name has now is not the one that it has later.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv6Network, ip_address, ip_network
from typing import NoReturn

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.settings.addresses import IpNetwork, is_within, overlapping
from solo5_systemd.settings.records import TYPES, texts

ENTRIES_MAX = 64
"""Entries of one list. Each is a rule that the first packet of a connection may pass."""

METADATA = ("169.254.0.0/16", "168.63.129.16", "100.100.100.200")
"""The metadata services of clouds: link-local addresses, and those of Azure and Alibaba Cloud."""

METADATA6 = ("fd00:ec2::/32", "fd20:ce::254", "fd00:c1::a9fe:a9fe", "fd00:42::42")
"""The metadata services of Amazon with its other services at these addresses, Google, Oracle and Scaleway."""

NONE = "none"
PROTOCOLS = ("tcp", "udp", "icmp")
_WITH_PORTS = ("tcp", "udp")

# These are compiled at their first use, for startup time.
_ENTRY = (
    r"(?:\[(?P<six>[0-9A-Fa-f:.]+(?:/[0-9]{1,3})?)\]"
    r"|(?P<bare>[0-9A-Fa-f]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(?:/[0-9]{1,3})?)"
    r"|(?P<four>[0-9.]+(?:/[0-9]{1,3})?))"
    r"(?::(?P<first>[0-9]{1,5})(?:-(?P<last>[0-9]{1,5}))?)?"
    r"(?:/(?P<protocol>[a-z]+))?"
)
_LOOKS_LIKE_A_NAME = r"[A-Za-z0-9_*-]+(\.[A-Za-z0-9_*-]+)*\.?(:[0-9-]+)?(/[a-z]+)?"

_UNREACHABLE: Mapping[IPv6Network, str] = {
    IPv6Network("::/127"): "of no other machine",
    IPv6Network("::ffff:0:0/96"): "of IPv4: expected it without ::ffff:",
    IPv6Network("fe80::/10"): "of one link",
    IPv6Network("ff00::/8"): "of a group",
}
"""IPv6 addresses that a guest with a list never reaches: an entry inside of them would have no effect."""


@dataclass(frozen=True, kw_only=True)
class Destination:
    """An entry of an egress list.

    Attributes:
        protocol: "tcp", "udp" or "icmp" (ICMPv6 for IPv6); None: every protocol, or, with ports, TCP and UDP.
        ports: the first and last port; None: every port.
    """

    network: IpNetwork
    protocol: str | None = None
    ports: tuple[int, int] | None = None

    def __str__(self) -> str:
        single = self.network.prefixlen == self.network.max_prefixlen
        where = str(self.network.network_address if single else self.network)
        text = f"[{where}]" if self.network.version == 6 else where
        if self.ports is not None:
            first, last = self.ports
            text += f":{first}" if first == last else f":{first}-{last}"
        return f"{text}/{self.protocol}" if self.protocol else text

    @property
    def protocols(self) -> Sequence[str | None]:
        """The protocols that the entry permits; None: every protocol."""
        return _WITH_PORTS if self.protocol is None and self.ports is not None else (self.protocol,)


Egress = tuple[Destination, ...] | None
"""The destinations of a guest; None: every destination that its network permits."""


def destination(text: str) -> Destination:
    """Parse one entry.

    Raises:
        InvalidRequestError: it is a name, or malformed.
    """
    match = re.fullmatch(_ENTRY, text, re.ASCII)
    if match is None:
        _refuse(text)
    protocol = match["protocol"]
    if protocol is not None and protocol not in PROTOCOLS:
        raise InvalidRequestError(f"egress {text!r} has protocol {protocol!r}: expected {_or(PROTOCOLS)}.")
    ports = _ports(text, match["first"], match["last"] or match["first"])
    if ports is not None and protocol is not None and protocol not in _WITH_PORTS:
        raise InvalidRequestError(f"egress {text!r} has a port and protocol {protocol}: expected {_or(_WITH_PORTS)}.")
    return Destination(
        network=_network(text, match["six"] or match["bare"] or match["four"]), protocol=protocol, ports=ports
    )


def egress(texts: Sequence[str]) -> tuple[Destination, ...]:
    """Parse a list, without repetitions; `none` alone, and an empty list, is empty.

    Raises:
        InvalidRequestError: too many entries, `none` beside others, or as `destination`.
    """
    if len(texts) > ENTRIES_MAX:
        raise InvalidRequestError(f"egress has {len(texts)} entries: expected {ENTRIES_MAX} or fewer.")
    if NONE in texts:
        if len(texts) > 1:
            raise InvalidRequestError(f"egress has {NONE!r} beside other entries: expected {NONE!r} alone.")
        return ()
    return tuple(dict.fromkeys(map(destination, texts)))


TYPES[Egress] = texts(egress)


def intersection(one: Egress, other: Egress) -> Egress:
    """Return the destinations that both lists permit; at most the product of their lengths."""
    if one is None or other is None:
        return other if one is None else one
    pairs = (_common(mine, theirs) for mine in one for theirs in other)
    return tuple(dict.fromkeys(entry for each in pairs for entry in each))


def _common(one: Destination, other: Destination) -> Sequence[Destination]:
    """Return what two entries have in common: none, one entry, or one for each of two protocols."""
    ports = one.ports or other.ports
    if one.ports and other.ports:
        ports = max(one.ports[0], other.ports[0]), min(one.ports[1], other.ports[1])
    if not overlapping(one.network, [other.network]) or (ports and ports[0] > ports[1]):
        return ()
    # Ranges with a prefix never overlap in part.
    network = max(one.network, other.network, key=lambda each: each.prefixlen)
    protocols = [
        mine if theirs is None else theirs
        for mine in one.protocols
        for theirs in other.protocols
        if mine is None or theirs is None or mine == theirs
    ]
    fitting = [each for each in protocols if ports is None or each in _WITH_PORTS]
    if tuple(fitting) == _WITH_PORTS and ports is not None:
        return (Destination(network=network, ports=ports),)
    return [Destination(network=network, protocol=each, ports=ports) for each in fitting]


def _ports(text: str, first: str | None, last: str | None) -> tuple[int, int] | None:
    if first is None or last is None:
        return None
    if not (1 <= int(first) <= 65535 and 1 <= int(last) <= 65535):
        raise InvalidRequestError(f"egress {text!r} has a port that does not exist: expected 1 to 65535.")
    if int(last) < int(first):
        raise InvalidRequestError(
            f"egress {text!r} has a range of ports that ends before it begins: expected the lower port first."
        )
    return int(first), int(last)


def _network(text: str, where: str) -> IpNetwork:
    try:
        found = ip_network(where, strict=False)
    except ValueError:
        _refuse(text)
    address = where.partition("/")[0]
    if ip_address(address) != found.network_address:
        raise InvalidRequestError(
            f"egress {text!r} has an address with bits beyond its prefix: expected {found} for the range, or {address} "
            "for the address alone."
        )
    for block, words in _UNREACHABLE.items():
        if is_within(found, [block]):
            reason = words if ":" in words else f"{words}: expected a global or unique local address"
            raise InvalidRequestError(f"egress {text!r} has an address {reason}.")
    return found


def _refuse(text: str) -> NoReturn:
    if text and re.fullmatch(_LOOKS_LIKE_A_NAME, text, re.ASCII) and re.search("[A-Za-z]", text.partition("/")[0]):
        raise InvalidRequestError(
            f"egress {text!r} is a name, which the guest alone resolves: expected its addresses, and its name server."
        )
    raise InvalidRequestError(
        f"egress {text!r} is not a destination: expected ADDRESS[/PREFIX][:PORT[-PORT]][/tcp|/udp|/icmp], such as "
        "10.0.0.0/8:5432/tcp."
    )


def _or(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"
