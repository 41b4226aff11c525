"""What is counted of a network: what `solo5ctl metrics` and `stats` read, without a network's settings."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from solo5_systemd.base.names import NetworkName
from solo5_systemd.network.drops import Dropped


@dataclass(frozen=True, kw_only=True)
class NetworkUse:
    """The use of a network; it is a record (`settings.records`), of which D-Bus has more (`NetworkOverview`).

    Attributes:
        up: the bridge exists.
        leases: their number.
        free: the number of free addresses; None: it has no range yet, or joins a bridge without a pool.
        namespace: path of the network namespace of other programs that has it; empty: the host's own.
    """

    name: NetworkName
    up: bool
    leases: int
    free: int | None = None
    dropped: Dropped = field(default_factory=Dropped)
    namespace: str = ""


def dropped_by_namespace(networks: Iterable[NetworkUse]) -> Mapping[str, Mapping[NetworkName, Dropped]]:
    """Return the counts of dropped packets by namespace, and by network."""
    found: dict[str, dict[NetworkName, Dropped]] = {}
    for network in networks:
        found.setdefault(network.namespace, {})[network.name] = network.dropped
    return found
