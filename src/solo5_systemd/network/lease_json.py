"""Lease records and network files as JSON documents, validated when they are parsed."""

from collections.abc import Mapping

from solo5_systemd.base.decode import Fields
from solo5_systemd.network.model import LeaseRecord, Network
from solo5_systemd.settings.network import NO_NETWORK
from solo5_systemd.settings.records import document, record

VERSION = 1


def lease_record_document(lease: LeaseRecord) -> dict[str, object]:
    """Return the JSON document of a lease record, of version `VERSION`."""
    return {"version": VERSION, **document(lease)}


def parse_lease_record(content: object) -> LeaseRecord:
    """Parse the JSON document of a lease record.

    Raises:
        InvalidRequestError: a field is missing or malformed, or the version differs.
    """
    fields = _fields(content)
    found = record(LeaseRecord, fields)
    held = found.reservation
    if not {port.nic for port in held.ports} <= {lease.nic for lease in held.leases}:
        raise fields.wrong("reservation.ports", [port.nic for port in held.ports], "ports of its own NICs")
    return found


def network_document(network: Network) -> dict[str, object]:
    """Return the JSON document of a network in use, of version `VERSION`."""
    return {"version": VERSION, **document(network)}


def parse_network(content: object) -> Network:
    """Parse the JSON document of a network in use.

    Raises:
        InvalidRequestError: a field is missing or malformed, or the version differs.
    """
    fields = _fields(content)
    found = record(Network, fields)
    if found.join is None and (found.ipv4 is None) is not (found.gateway4 is None):
        raise fields.wrong("gateway4", str(found.gateway4 or ""), "a gateway beside a range")
    if found.join is None and found.name != NO_NETWORK and found.ipv4 is None and found.ipv6 is None:
        raise fields.wrong("ipv4", "", "a range, or an IPv6 prefix")
    return found


def parse_texts(content: object) -> Mapping[str, str]:
    """Parse a JSON object with string values only.

    Raises:
        InvalidRequestError: the document is not an object, or a value is not a string.
    """
    fields = Fields(content)
    return {key: fields.text(key) for key in fields}


def _fields(content: object) -> Fields:
    fields = Fields(content)
    fields.integer("version", low=VERSION, high=VERSION)
    return fields
