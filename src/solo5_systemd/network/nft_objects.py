"""Elements of sets and maps of the nftables tables, and what belongs to one guest besides: egress chain, rate limits.

Their commands, in the syntax of nft(8), and what the kernel has of them, from a listing (libnftables-json(5)).

A guest's chain or limit is made and removed with one element of a map, which refers to it: the map `egress` to a chain
(a verdict map), the maps of RATES to a limit. So the cost of a packet, of an attach and of a release does not depend on
the number of guests (docs/decisions/egress.md).
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv6Address
from typing import Any

from solo5_systemd.settings.egress import Destination, destination
from solo5_systemd.settings.rate import Rate

TABLE = "solo5"
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
_PROTOCOLS = {"6": "tcp", "17": "udp"}
_UNITS = {"bytes": 1, "kbytes": 1 << 10, "mbytes": 1 << 20}


@dataclass(frozen=True, kw_only=True)
class Element:
    """One element of a set or, with a value, of a map; of the maps EGRESS and RATES, with the object that it refers to.

    Its value is then that of the object: rate and burst, or the entries of an egress list, each for one protocol at
    most: nftables 1.0.6 does not list the ports of two.
    """

    family: str
    name: str
    key: tuple[str, ...]
    value: tuple[str, ...] = ()

    def __str__(self) -> str:
        value = f" : {' . '.join(self.value)}" if self.value else ""
        return f"element {self.family} {TABLE} {self.name} {{ {' . '.join(self.key)}{value} }}"

    @property
    def object(self) -> str:
        """The name of its own chain or limit; empty: it has none. An IPv6 address is 32 digits: names have no colon."""
        if self.name != EGRESS and self.name not in RATES:
            return ""
        own = self.key[0].strip('"')
        return f"{self.name}-{IPv6Address(own).packed.hex() if ':' in own else own}"

    def added(self) -> Sequence[str]:
        """Return the commands that add it, with its object; idempotent."""
        own, of = self.object, f"{self.family} {TABLE}"
        if not own:
            return (f"add {self}",)
        if self.name == EGRESS:
            # With the entry as its comment, by which a listing has it: each change of a rule loses the comment.
            rules = (f'{_egress_rule(destination(entry))} comment "{entry}"' for entry in self.value)
            return (
                f"add chain {of} {own}",
                f"flush chain {of} {own}",
                *(f"add rule {of} {own} {rule}" for rule in (*rules, "goto unlisted")),
                f"add element {of} {self.name} {{ {self.key[0]} : jump {own} }}",
            )
        limit, burst = self.value
        unit, burst_unit = (" bytes", "bytes") if self.name.endswith("bytes") else ("", "packets")
        return (
            f"add limit {of} {own} {{ rate over {limit}{unit}/second burst {burst} {burst_unit} ; }}",
            f'add element {of} {self.name} {{ {self.key[0]} : "{own}" }}',
        )

    def deleted(self) -> Sequence[str]:
        """Return the commands that delete it, with its object; they fail if one is missing."""
        own, of = self.object, f"{self.family} {TABLE}"
        if not own:
            return (f"delete {self}",)
        element = f"delete element {of} {self.name} {{ {self.key[0]} }}"
        if self.name == EGRESS:
            return element, f"flush chain {of} {own}", f"delete chain {of} {own}"
        return element, f"delete limit {of} {own}"


def rate_values(rate: Rate) -> Mapping[str, tuple[str, str]]:
    """Return rate and burst of each limit that is set, by the name of its map."""
    return {
        name: (str(limit), str(BYTES_BURST if name.endswith("bytes") else max(limit // 10, PACKETS_BURST)))
        for name, limit in zip(RATES, rate, strict=True)
        if limit is not None
    }


def _egress_rule(entry: Destination) -> str:
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


# -- listings ----------------------------------------------------------------------------------------------------------


def listed_rules(objects: Sequence[Mapping[str, Any]]) -> list[object]:
    """Return the table, its chains, sets and rules, without elements, and without what belongs to one guest."""
    # Another handle of a table shows that another program has made it again, without the elements of dynamic sets.
    return [
        {
            kind: {key: value for key, value in body.items() if key != "elem" and (key != "handle" or kind == "table")}
            for kind, body in item.items()
        }
        for item in objects
        if "metainfo" not in item and not _is_of_guest(item)
    ]


def listed_elements(objects: Sequence[Mapping[str, Any]], dynamic: Container[str]) -> Iterator[Element]:
    """Yield the elements of a table, without those that packets add, of the sets `dynamic`."""
    values = _listed_objects(objects)
    found = (element for item in objects for element in _elements(item, dynamic))
    # One of a map of objects has the value of its object; if that is missing, another one than any that was added.
    return (replace(each, value=values.get(each.object, each.value)) if each.object else each for each in found)


def _elements(item: Mapping[str, Mapping[str, object]], dynamic: Container[str]) -> Iterator[Element]:
    for kind in ("set", "map"):
        body = item.get(kind, {})
        elem = () if body.get("name") in dynamic else body.get("elem", ())
        for one in elem if isinstance(elem, list) else ():
            key, value = one if kind == "map" else (one, None)
            yield Element(
                family=str(body["family"]),
                name=str(body["name"]),
                key=_with_protocol_names(_words(key), body["type"]),
                value=() if value is None else _words(value),
            )


def _with_protocol_names(key: tuple[str, ...], types: object) -> tuple[str, ...]:
    """Replace protocol numbers by names: nftables 1.0.6 prints numbers without an /etc/protocols."""
    if isinstance(types, dict):  # `typeof`, by nftables 1.1: bytes of the payload, and no protocol
        return key
    kinds = types if isinstance(types, list) else [types]
    pairs = zip(key, kinds, strict=True)
    return tuple(_PROTOCOLS.get(word, word) if kind == "inet_proto" else word for word, kind in pairs)


def unquoted(element: Element) -> Element:
    """Return an element without quotes around link names, as listings have it."""
    return replace(element, key=tuple(word.strip('"') for word in element.key))


def _listed_objects(objects: Sequence[Mapping[str, Any]]) -> Mapping[str, tuple[str, ...]]:
    """Return the value of each guest's object in an nft listing (libnftables-json(5)), by the object's name."""
    found: dict[str, tuple[str, ...]] = {}
    for item in objects:
        if _is_of_guest(item):
            ((kind, body),) = item.items()
            if kind == "chain":
                found.setdefault(body["name"], ())
            elif kind == "limit":
                rates = ((body[key], body.get(f"{key}_unit", "")) for key in ("rate", "burst"))
                found[body["name"]] = tuple(str(value * _UNITS.get(unit, 1)) for value, unit in rates)
            elif "goto" not in body["expr"][-1]:  # the last rule of a chain
                found[body["chain"]] = (*found.get(body["chain"], ()), body.get("comment", ""))
    return found


def _is_of_guest(item: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether an object of a listing is a guest's chain, a rule of it, or a guest's limit."""
    chain = item.get("chain", {}).get("name") or item.get("rule", {}).get("chain", "")
    return "limit" in item or chain.startswith(f"{EGRESS}-")


def _words(value: object) -> tuple[str, ...]:
    """Return the words of a value in an nft listing, of which only a concatenation has several."""
    match value:
        case {"concat": [*parts]}:
            return tuple(word for part in parts for word in _words(part))
        case {"prefix": {"addr": address, "len": length}}:
            return (f"{address}/{length}",)
        case {"range": [first, last]}:
            return (f"{first}-{last}",)
        case {"elem": {"val": key}}:  # an element with a counter
            return _words(key)
        case int() if value < 0:  # JSON output has 64 bits as a signed number
            return (str(value + (1 << 64)),)
        case _:
            return (str(value),)
