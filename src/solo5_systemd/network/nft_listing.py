"""What the kernel has of a table, read from an nft listing (libnftables-json(5)): its rules and its elements."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from solo5_systemd.network.nft_elements import Element
from solo5_systemd.network.nft_objects import is_of_guest, listed_objects, object_name, words
from solo5_systemd.network.nft_rules import DYNAMIC

_PROTOCOLS = {"6": "tcp", "17": "udp"}


def listed_rules(objects: Sequence[Mapping[str, Any]]) -> list[object]:
    """Return the table, its chains, sets and rules, without elements, and without what belongs to one guest."""
    return [_rule(item) for item in objects if "metainfo" not in item and not is_of_guest(item)]


def listed_elements(objects: Sequence[Mapping[str, Any]]) -> Iterator[Element]:
    """Yield the elements of a table, without those that packets add."""
    values = listed_objects(objects)
    return (_with_object(element, values) for item in objects for element in _elements(item))


def _with_object(element: Element, values: Mapping[str, tuple[str, ...]]) -> Element:
    """Return an element of a map of objects with the value of its object; a value of its own if that is missing."""
    if not element.has_object:
        return element
    return replace(element, value=values.get(object_name(element.name, element.key[0]), element.value))


def _rule(item: Mapping[str, Mapping[str, object]]) -> object:
    # Another handle of a table shows that another program has made it again, without the elements of dynamic sets.
    return {
        kind: {key: value for key, value in body.items() if key != "elem" and (key != "handle" or kind == "table")}
        for kind, body in item.items()
    }


def _elements(item: Mapping[str, Mapping[str, object]]) -> Iterable[Element]:
    for kind in ("set", "map"):
        body = item.get(kind, {})
        elem = () if body.get("name") in DYNAMIC else body.get("elem", ())
        for one in elem if isinstance(elem, list) else ():
            key, value = one if kind == "map" else (one, None)
            yield Element(
                family=str(body["family"]),
                name=str(body["name"]),
                key=_with_protocol_names(words(key), body["type"]),
                value=() if value is None else words(value),
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
