"""Values that are derived from others: numbers and MACs from names, prefixes from the host, addresses from MACs."""

import hashlib
import hmac
from ipaddress import IPv6Address, IPv6Network

from solo5_systemd.base.names import NetworkName
from solo5_systemd.network.model import MacAddress

_APPLICATION = bytes.fromhex("5d1c0f6b3a8e4f3f9e0b6a1f7c2d8e55")
"""The application ID of this package (sd_id128_get_machine_app_specific(3)): the machine ID itself is confidential."""

_LINK_LOCAL = IPv6Network("fe80::/64")


def digest_of(*words: str) -> bytes:
    """Return the SHA-256 of names."""
    # No name contains a slash, so that different words never join to the same text.
    return hashlib.sha256("/".join(words).encode()).digest()


def number_of(*words: str) -> int:
    """Return a number of 64 bits that is derived from names."""
    return int.from_bytes(digest_of(*words)[:8])


def mac_of(number: int) -> MacAddress:
    """Return the MAC address that a number determines."""
    # 02: locally administered and unicast (IEEE 802, clause 8).
    return MacAddress(":".join(f"{octet:02x}" for octet in b"\x02" + (number % (1 << 40)).to_bytes(5)))


ASKER = MacAddress("02:73:35:00:00:00")
"""The sender of solo5-networkd's questions to a guest that boots (`Neighbours.ask`)."""


def bridge_mac(name: NetworkName, bridge: str = "") -> MacAddress:
    """Return the fixed MAC of a network's bridge, or of a segment by its name, which marks it as made by this service.

    Without a fixed MAC a bridge takes the lowest MAC of its ports.
    """
    return mac_of(number_of("bridge", name, *((bridge,) if bridge else ())))


def unique_local_prefix(machine_id: str) -> IPv6Network:
    """Return this host's unique local prefix of 48 bits (RFC 4193): the same after each boot.

    Raises:
        ValueError: not 32 hexadecimal digits, as machine-id(5) has.
    """
    if len(machine_id) != 32:  # an empty file, as before the first boot, would give all hosts one prefix
        raise ValueError(machine_id)
    digest = hmac.digest(bytes.fromhex(machine_id), _APPLICATION, hashlib.sha256)
    return IPv6Network((b"\xfd" + digest[:5] + bytes(10), 48))


def link_local(mac: str) -> IPv6Address:
    """Return the link-local address that a guest derives from its MAC (RFC 4291, appendix A), as MirageOS does."""
    return slaac_address(_LINK_LOCAL, mac)


def slaac_address(prefix: IPv6Network, mac: str) -> IPv6Address:
    """Return the address of a prefix of 64 bits that a guest derives from its MAC, as MirageOS and Linux do."""
    own = octets(mac)
    identifier = bytes([own[0] ^ 2]) + own[1:3] + b"\xff\xfe" + own[3:]
    return IPv6Address(int(prefix.network_address) | int.from_bytes(identifier))


def octets(mac: str) -> bytes:
    """Return the six bytes of a MAC address."""
    return bytes.fromhex(mac.replace(":", ""))
