"""What tasks use, all at once: the kernel is asked, PID 1 is not."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from solo5_systemd.cgroup.usage import Usage
from solo5_systemd.names import DeviceName, TaskName
from solo5_systemd.network.traffic import Traffic

if TYPE_CHECKING:
    from solo5_systemd.backends import Backends


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One task, now; `nics`: those that are connected."""

    usage: Usage
    nics: Mapping[DeviceName, Traffic]


async def samples(backends: "Backends") -> dict[TaskName, Sample]:
    """Every task that runs, in the order of their names."""
    usages = await backends.usages.usages()
    traffic = await backends.networks.traffic()
    return {task: Sample(usage=usages[task], nics=traffic.get(task, {})) for task in sorted(usages)}
