"""Networks as `solo5ctl network` shows them, and their repairs.

They are records (`settings.records`): D-Bus and the files in /run have their fields by name.
"""

from dataclasses import dataclass

from solo5_systemd.base.names import TaskName
from solo5_systemd.network.use import NetworkUse
from solo5_systemd.settings.network_policy import Network


@dataclass(frozen=True, kw_only=True)
class Repair:
    """A repair of the network of tasks.

    Attributes:
        what: its description in the log and in task events.
        tasks: those whose network it concerned; of many that are recorded, the first ones.
        time: microseconds since the epoch; 0: it is not recorded.
        others: the number of further tasks.
    """

    what: str
    tasks: tuple[TaskName, ...]
    time: int = 0
    others: int = 0


@dataclass(frozen=True, kw_only=True)
class NetworkOverview(NetworkUse, Network):
    """A network, in use or only configured, as `solo5ctl network` shows it.

    `ipv4`, `gateway4`, `ipv6` and `gateway6` are also None where the settings have none and the network is not in use.
    """
