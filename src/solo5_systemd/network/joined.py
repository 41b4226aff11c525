"""The rules for a network that joins an existing bridge: which bridge it may be."""

from dataclasses import dataclass

from solo5_systemd.base.errors import HostError
from solo5_systemd.settings.network_policy import Network

TAP_MTU_MAX = 65521


@dataclass(frozen=True, kw_only=True)
class Link:
    """The attributes of a link that the service reads.

    Attributes:
        kind: empty for a physical device.
        mac: empty: it has none.
        master: the index of its bridge, or 0.
        default_pvid: the VLAN of a new port of a bridge; 0: none.
    """

    kind: str
    up: bool = True
    mtu: int = 1500
    mac: str = ""
    master: int = 0
    vlan_filtering: bool = False
    default_pvid: int = 1


def usable_bridge(network: Network, facts: Link | None) -> Link:
    """Return the link of a network's bridge (None: there is none); raises HostError if taps cannot become its ports."""
    name, bridge = network.name, network.bridge
    vlan = network.join.vlan if network.join else 0
    if facts is None:
        raise HostError(
            f"bridge {bridge} of network {name} does not exist.",
            f"Make it, or set another one as network.{name}.join.",
        )
    if facts.kind != "bridge":  # a macvtap on it would pass no rule of table bridge
        what = f"of kind {facts.kind}" if facts.kind else "a physical device"
        raise HostError(
            f"link {bridge} of network {name} is {what}: expected a Linux bridge.",
            f"Set one as network.{name}.join, or make one with {bridge} as its port and the host's addresses: "
            "docs/network-lan.md, “A bridge for a physical link”.",
        )
    if not facts.up:
        raise HostError(f"bridge {bridge} of network {name} is down.", f"`ip link set {bridge} up`.")
    if vlan and not facts.vlan_filtering:  # the bridge would ignore the VLAN, and forward to all of its ports
        raise HostError(
            f"bridge {bridge} of network {name} does not filter VLANs (vlan_filtering 0): expected 1, for VLAN {vlan}.",
            f"`ip link set {bridge} type bridge vlan_filtering 1` (which a kernel without VLAN_8021Q and "
            f"BRIDGE_VLAN_FILTERING refuses), or leave out network.{name}.vlan.",
        )
    if facts.vlan_filtering and not vlan and not facts.default_pvid:  # a port without a VLAN passes no frame
        raise HostError(
            f"bridge {bridge} of network {name} has no VLAN for new ports (vlan_default_pvid 0): expected the VLAN of "
            "guests.",
            f"Set it as network.{name}.vlan.",
        )
    return facts
