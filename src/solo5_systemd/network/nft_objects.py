"""What belongs to one guest in the nftables tables besides elements of sets: its egress chain, and its rate limits.

Each is made and removed with one element of a map, which refers to it: the map `egress` to a chain (a verdict map), the
maps of RATES to a limit. So the cost of a packet, of an attach and of a release does not depend on the number of guests
(docs/decisions/egress.md).
"""

from collections.abc import Mapping, Sequence
from ipaddress import IPv6Address
from typing import Any

from solo5_systemd.settings.egress import Destination, destination
from solo5_systemd.settings.rate import Rate

EGRESS = "egress"
"""The verdict map from a guest's address to its chain; and the prefix of the name of that chain."""

RATES = ("sent_bytes", "received_bytes", "sent_packets", "received_packets")
"""The maps from a tap to a limit, in the order of `settings.rate.KEYS`."""

BYTES_BURST, PACKETS_BURST = 128 << 10, 10
"""What a limit permits at once. The kernel adds one second's bytes to the burst of a limit of bytes (nft_limit.c), and
nothing to one of packets: that is a tenth of a second's packets, and at least PACKETS_BURST.

A packet that is longer than both together would never pass; those of the host's TCP for a guest are up to 64 KiB long,
since they pass the rules before segmentation.
"""

_DADDR = {4: "ip daddr", 6: "ip6 daddr"}
_UNITS = {"bytes": 1, "kbytes": 1 << 10, "mbytes": 1 << 20}


def made(table: str, family: str, name: str, key: str, value: Sequence[str]) -> Sequence[str]:
    """Return the commands that make a guest's object and its element in the map `name`; idempotent.

    Args:
        key: of the element: an address, or a tap's name in quotes.
        value: the entries of an egress list, each for one protocol at most (nftables 1.0.6 does not list the ports of
            two); or rate and burst of a limit.
    """
    own = object_name(name, key)
    if name == EGRESS:
        # With the entry as its comment, by which a listing has it: each change of a rule loses the comment.
        rules = (*(f'{_rule(destination(entry))} comment "{entry}"' for entry in value), "goto unlisted")
        return (
            f"add chain {family} {table} {own}",
            f"flush chain {family} {table} {own}",
            *(f"add rule {family} {table} {own} {rule}" for rule in rules),
            f"add element {family} {table} {name} {{ {key} : jump {own} }}",
        )
    limit, burst = value
    unit, burst_unit = (" bytes", "bytes") if name.endswith("bytes") else ("", "packets")
    return (
        f"add limit {family} {table} {own} {{ rate over {limit}{unit}/second burst {burst} {burst_unit} ; }}",
        f'add element {family} {table} {name} {{ {key} : "{own}" }}',
    )


def removed(table: str, family: str, name: str, key: str) -> Sequence[str]:
    """Return the commands that remove them; all of them fail if one is missing."""
    own = object_name(name, key)
    element = f"delete element {family} {table} {name} {{ {key} }}"
    if name == EGRESS:
        return element, f"flush chain {family} {table} {own}", f"delete chain {family} {table} {own}"
    return element, f"delete limit {family} {table} {own}"


def object_name(name: str, key: str) -> str:
    """Return the name of a guest's chain or limit; an IPv6 address as 32 hexadecimal digits: names have no colon."""
    own = key.strip('"')
    return f"{name}-{IPv6Address(own).packed.hex() if ':' in own else own}"


def rate_values(rate: Rate) -> Mapping[str, tuple[str, str]]:
    """Return rate and burst of each limit that is set, by the name of its map."""
    pairs = zip(RATES, rate.limits, strict=True)
    return {name: (str(limit), str(_burst(name, limit))) for name, limit in pairs if limit is not None}


def _burst(name: str, limit: int) -> int:
    return BYTES_BURST if name.endswith("bytes") else max(limit // 10, PACKETS_BURST)


def _rule(entry: Destination) -> str:
    matches = []
    if entry.network.prefixlen:  # a prefix of 0 matches every packet of the table
        single = entry.network.prefixlen == entry.network.max_prefixlen
        where = entry.network.network_address if single else entry.network
        matches.append(f"ct original {_DADDR[entry.network.version]} {where}")
    if entry.protocol is not None:
        is_ping6 = entry.protocol == "icmp" and entry.network.version == 6
        matches.append(f"meta l4proto {'ipv6-icmp' if is_ping6 else entry.protocol}")
    if entry.ports is not None:
        first, last = entry.ports
        matches.append(f"ct original proto-dst {first}" + (f"-{last}" if last != first else ""))
    return " ".join((*matches, "return"))


def listed_objects(objects: Sequence[Mapping[str, Any]]) -> Mapping[str, tuple[str, ...]]:
    """Return the value of each guest's object in an nft listing (libnftables-json(5)), by the object's name."""
    found: dict[str, tuple[str, ...]] = {}
    for item in objects:
        if is_of_guest(item):
            ((kind, body),) = item.items()
            if kind == "chain":
                found.setdefault(body["name"], ())
            elif kind == "limit":
                found[body["name"]] = _listed_limit(body)
            elif "goto" not in body["expr"][-1]:  # the last rule of a chain
                found[body["chain"]] = (*found.get(body["chain"], ()), body.get("comment", ""))
    return found


def is_of_guest(item: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether an object of a listing is a guest's chain, a rule of it, or a guest's limit."""
    chain = item.get("chain", {}).get("name") or item.get("rule", {}).get("chain", "")
    return "limit" in item or chain.startswith(f"{EGRESS}-")


def _listed_limit(body: Mapping[str, Any]) -> tuple[str, str]:
    rate = body["rate"] * _UNITS.get(body.get("rate_unit", ""), 1)
    burst = body["burst"] * _UNITS.get(body.get("burst_unit", ""), 1)
    return str(rate), str(burst)


def words(value: object) -> tuple[str, ...]:
    """Return the words of a value in an nft listing, of which only a concatenation has several."""
    match value:
        case {"concat": [*parts]}:
            return tuple(word for part in parts for word in words(part))
        case {"prefix": {"addr": address, "len": length}}:
            return (f"{address}/{length}",)
        case {"range": [first, last]}:
            return (f"{first}-{last}",)
        case {"elem": {"val": key}}:  # an element with a counter
            return words(key)
        case int() if value < 0:  # JSON output has 64 bits as a signed number
            return (str(value + (1 << 64)),)
        case _:
            return (str(value),)
