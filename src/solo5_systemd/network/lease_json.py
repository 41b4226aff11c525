"""Lease records and network files as JSON documents, validated when they are parsed."""

from collections.abc import Iterable, Mapping, Sequence
from ipaddress import IPv4Network, IPv6Network
from typing import cast

from solo5_systemd.decode import Fields
from solo5_systemd.names import network_name, task_name
from solo5_systemd.network.guest_limits import LIMITS_SIGNATURE, limits_to_wire
from solo5_systemd.network.model import (
    LEASE_SIGNATURE,
    NAMES_SIGNATURE,
    NIC_SIGNATURE,
    PORT_SIGNATURE,
    UNNAMED,
    GuestNames,
    Lease,
    LeaseRecord,
    LeaseState,
    Network,
    NicRequest,
    PortRequest,
    Reservation,
    ipv4_address,
    ipv6_address,
    limits_of,
    with_limits,
)
from solo5_systemd.settings.address_pool import address_pool, address_pool6
from solo5_systemd.settings.model import NO_NETWORK, Join, network_policy, policy_table

VERSION = 1


def lease_record_document(record: LeaseRecord) -> dict[str, object]:
    """Return the JSON document of a lease record, of version `VERSION`."""
    return {
        "version": VERSION,
        "task": record.reservation.task,
        "state": record.state.value,
        "expires": record.expires,
        "nics": [nic.to_wire() for nic in record.nics],
        "leases": [lease.to_wire() for lease in record.reservation.leases],
        "ports": [port.to_wire() for port in record.reservation.ports],
        **({"namespace": record.namespace} if record.namespace else {}),
        **({} if record.names == UNNAMED else {"names": record.names.to_wire()}),
        **({"moves": record.moves} if record.moves else {}),
        **({"lender": record.lender} if record.lender else {}),
        **({"limits": limits_to_wire(limits)} if (limits := record.reservation.limits) else {}),
    }


def parse_lease_record(document: object) -> LeaseRecord:
    """Parse the JSON document of a lease record.

    Raises:
        InvalidRequestError: a field is missing or malformed, or the version differs.
    """
    fields = _fields(document)
    leases = tuple(Lease.from_wire(wire) for wire in _tuples(fields, document, "leases", LEASE_SIGNATURE))
    ports = tuple(
        PortRequest.from_wire(cast("tuple[str, str, int, int, str]", wire))
        for wire in _tuples(fields, document, "ports", PORT_SIGNATURE)
    )
    if not {port.nic for port in ports} <= {lease.nic for lease in leases}:
        raise fields.wrong("ports", [port.nic for port in ports], "ports of its own NICs")
    nics = tuple(
        NicRequest.from_wire(cast("tuple[str, ...]", wire)) for wire in _tuples(fields, document, "nics", NIC_SIGNATURE)
    )
    if fields.has("limits"):  # the record of a task without limits has none
        wires = _tuples(fields, document, "limits", LIMITS_SIGNATURE)
        nics = with_limits(nics, cast("Sequence[Sequence[str]]", wires))
    return LeaseRecord(
        reservation=Reservation(
            task=fields.parsed("task", task_name),
            leases=leases,
            ports=ports,
            limits=limits_of(nics),
        ),
        nics=nics,
        state=fields.parsed("state", LeaseState),
        expires=fields.integer("expires", low=0, high=1 << 53),
        namespace=fields.text("namespace") if fields.has("namespace") else "",
        names=_parse_names(fields, document) if fields.has("names") else UNNAMED,
        moves=fields.integer("moves", low=0, high=1 << 53) if fields.has("moves") else 0,
        lender=fields.parsed("lender", task_name) if fields.has("lender") else "",
    )


def remembered_document(nics: Iterable[NicRequest]) -> list[object]:
    """Return the JSON document of the addresses that a declared task had last."""
    return [list(nic.to_wire()) for nic in nics]


def parse_remembered(document: object) -> tuple[NicRequest, ...]:
    """Parse the JSON document of the addresses that a declared task had last.

    Raises:
        InvalidRequestError: it is malformed.
    """
    fields = Fields({"nics": document})
    wires = _tuples(fields, {"nics": document}, "nics", NIC_SIGNATURE)
    return tuple(NicRequest.from_wire(cast("tuple[str, ...]", wire)) for wire in wires)


def _parse_names(fields: Fields, document: object) -> GuestNames:
    wire = cast("Mapping[str, object]", document)["names"]
    match wire:
        case [[*servers], [*search], str(hostname)] if all(isinstance(each, str) for each in (*servers, *search)):
            return GuestNames.from_wire((servers, search, hostname))
        case _:
            raise fields.wrong("names", wire, f"a value of {NAMES_SIGNATURE}")


def network_document(network: Network) -> dict[str, object]:
    """Return the JSON document of a network in use, of version `VERSION`."""
    return {
        "version": VERSION,
        "name": network.name,
        "bridge": network.bridge,
        "ipv4": str(network.ipv4 or ""),
        "gateway4": str(network.gateway4 or ""),
        "mtu": network.mtu,
        "masquerade": network.masquerade,
        "policy": policy_table(network.policy),
        **({} if network.join is None else {"join": _join_document(network.join)}),
        **({"shared": True} if network.shared else {}),
        **({} if network.ipv6 is None else {"ipv6": _ipv6_document(network)}),
    }


def _ipv6_document(network: Network) -> dict[str, object]:
    return {
        "prefix": str(network.ipv6),
        "gateway": str(network.gateway6 or ""),
        "nat66": network.nat66,
        **({"ra": True, "dns6": [*map(str, network.dns6)]} if network.ra else {}),
    }


def _join_document(join: Join) -> dict[str, object]:
    return {"vlan": join.vlan, "pool": join.pool_text, "ipv6": join.ipv6, "pool6": join.pool6_text}


def parse_network(document: object) -> Network:
    """Parse the JSON document of a network in use.

    Raises:
        InvalidRequestError: a field is missing or malformed, or the version differs.
    """
    fields = _fields(document)
    join = _parse_join(fields.table("join")) if fields.has("join") else None
    has_range = fields.text("ipv4") != ""
    has_gateway = fields.text("gateway4") != ""
    if join is None and has_range is not has_gateway:
        raise fields.wrong("gateway4", fields.text("gateway4"), "a gateway beside a range")
    is_alone = join is not None or fields.text("name") == NO_NETWORK
    if not is_alone and not has_range and not fields.has("ipv6"):
        raise fields.wrong("ipv4", "", "a range, or an IPv6 prefix")
    ipv6 = fields.table("ipv6") if fields.has("ipv6") else None
    return Network(
        name=fields.parsed("name", network_name),
        bridge=fields.text("bridge"),
        ipv4=fields.parsed("ipv4", IPv4Network) if has_range else None,
        gateway4=fields.parsed("gateway4", ipv4_address) if has_gateway else None,
        mtu=fields.integer("mtu", low=68, high=65521),
        masquerade=fields.boolean("masquerade"),
        policy=network_policy(fields.table("policy")),
        join=join,
        shared=fields.has("shared") and fields.boolean("shared"),
        ipv6=ipv6.parsed("prefix", IPv6Network) if ipv6 else None,
        gateway6=ipv6.parsed("gateway", ipv6_address) if ipv6 and ipv6.text("gateway") else None,
        nat66=ipv6 is not None and ipv6.boolean("nat66"),
        ra=ipv6 is not None and ipv6.boolean("ra", default=False),
        dns6=tuple(ipv6.each("dns6", ipv6_address)) if ipv6 is not None else (),
    )


def _parse_join(fields: Fields) -> Join:
    return Join(
        vlan=fields.integer("vlan", low=0, high=4094),
        pool=fields.parsed("pool", address_pool) if fields.text("pool") else None,
        ipv6=fields.boolean("ipv6"),
        pool6=fields.parsed("pool6", address_pool6) if fields.text("pool6", "") else None,
    )


def parse_texts(document: object) -> Mapping[str, str]:
    """Parse a JSON object with string values only.

    Raises:
        InvalidRequestError: the document is not an object, or a value is not a string.
    """
    fields = Fields(document)
    return {key: fields.text(key) for key in fields}


def _fields(document: object) -> Fields:
    fields = Fields(document)
    fields.integer("version", low=VERSION, high=VERSION)
    return fields


def _tuples(fields: Fields, document: object, key: str, signature: str) -> tuple[tuple[object, ...], ...]:
    """Return a list of values of a signature."""
    kinds = [str if code == "s" else int for code in signature.strip("()")]
    wires = cast("Mapping[str, object]", document).get(key)
    if not isinstance(wires, list) or not all(_fits(wire, kinds) for wire in wires):
        raise fields.wrong(key, wires, f"a list of {signature}")
    return tuple(tuple(wire) for wire in wires)


def _fits(wire: object, kinds: Sequence[type]) -> bool:
    return isinstance(wire, list) and [*map(type, wire)] == kinds
