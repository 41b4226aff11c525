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
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_interface

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.settings.addresses import NEVER_BEHIND, IpNetwork, is_within, overlapping
from solo5_systemd.settings.records import TYPES, texts

ENTRIES_MAX = 64
"""Entries of one list. Each is a rule that the first packet of a connection may pass."""

METADATA = ("169.254.0.0/16", "168.63.129.16", "100.100.100.200")
"""The metadata services of clouds: link-local addresses, and those of Azure and Alibaba Cloud."""

METADATA6 = ("fd00:ec2::/32", "fd20:ce::254", "fd00:c1::a9fe:a9fe", "fd00:42::42")
"""The metadata services of Amazon with its other services at these addresses, Google, Oracle and Scaleway."""

NONE = "none"
_WITH_PORTS = ("tcp", "udp")

# This is compiled at its first use, for startup time.
_ENTRY = (
    r"(?:\[(?P<six>[0-9A-Fa-f:.]+(?:/[0-9]{1,3})?)\]"
    r"|(?P<bare>[0-9A-Fa-f]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(?:/[0-9]{1,3})?)"
    r"|(?P<four>[0-9.]+(?:/[0-9]{1,3})?))"
    r"(?::(?P<first>[0-9]{1,5})(?:-(?P<last>[0-9]{1,5}))?)?"
    r"(?:/(?P<protocol>tcp|udp|icmp))?"
)


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
    """Parse one entry; raises InvalidRequestError for a name, and for what is malformed."""
    match = re.fullmatch(_ENTRY, text, re.ASCII)
    try:
        found = ip_interface(match["six"] or match["bare"] or match["four"]) if match else None
    except ValueError:
        found = None
    if match is None or found is None:
        raise InvalidRequestError(
            f"egress {text!r} is not a destination: expected ADDRESS[/PREFIX][:PORT[-PORT]][/tcp|/udp|/icmp], such as "
            "10.0.0.0/8:5432/tcp, and no name, which the guest alone resolves."
        )
    network, protocol, ports = found.network, match["protocol"], None
    if match["first"]:
        ports = int(match["first"]), int(match["last"] or match["first"])
        if protocol == "icmp" or not 1 <= ports[0] <= ports[1] <= 65535:
            raise InvalidRequestError(
                f"egress {text!r} has ports that do not exist: expected 1 to 65535 of TCP or UDP, the lower one first."
            )
    if found.ip != network.network_address:
        raise InvalidRequestError(
            f"egress {text!r} has an address with bits beyond its prefix: expected {network} for the range, or "
            f"{found.ip} for the address alone."
        )
    if network.version == 6 and is_within(network, NEVER_BEHIND):  # an entry inside of these would have no effect
        raise InvalidRequestError(
            f"egress {text!r} has an address that no guest reaches: expected a global or unique local one, and none of "
            "IPv4 in IPv6."
        )
    return Destination(network=network, protocol=protocol, ports=ports)


def egress(texts: Sequence[str]) -> tuple[Destination, ...]:
    """Parse a list, without repetitions; `none` alone, and an empty list, is empty.

    Raises:
        InvalidRequestError: too many entries, `none` with others, or as `destination`.
    """
    if len(texts) > ENTRIES_MAX:
        raise InvalidRequestError(f"egress has {len(texts)} entries: expected {ENTRIES_MAX} or fewer.")
    if NONE in texts:
        if len(texts) > 1:
            raise InvalidRequestError(f"egress has {NONE!r} and other entries: expected {NONE!r} alone.")
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
    if tuple(fitting) == _WITH_PORTS and ports is not None:  # two entries would exceed the product of the lengths
        return (Destination(network=network, ports=ports),)
    return [Destination(network=network, protocol=each, ports=ports) for each in fitting]
