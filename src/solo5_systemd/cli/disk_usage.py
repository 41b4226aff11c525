"""The disks of tasks beside the I/O of the host's devices; what is not known is absent.

The kernel counts the I/O of a task by device (`io.stat`). Which disks are on a device is in the locks of disks, which
only root can read.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from solo5_systemd.base.errors import HostError
from solo5_systemd.base.names import TaskName
from solo5_systemd.cgroup.usage import Io
from solo5_systemd.engine.task import Sample
from solo5_systemd.storage.locks import devices_of_tasks

if TYPE_CHECKING:
    from solo5_systemd.engine.queries import Queries
    from solo5_systemd.storage.model import FullDiskChange

COUNTS = ("read_bytes", "written_bytes", "reads", "writes")


def with_disks(samples: Mapping[TaskName, Sample]) -> dict[TaskName, Sample]:
    """Return samples with the names of the disks on each device.

    Raises:
        HostError: the locks of disks cannot be read.
    """
    disks = devices_of_tasks() if any(each.usage.disks for each in samples.values()) else {}
    return {name: replace(each, disks=disks.get(name, {})) for name, each in samples.items()}


async def full_disks(engine: "Queries") -> "Sequence[FullDiskChange]":
    """Return the disks of all running tasks on full file systems; none where that is not known in time."""
    try:
        return await engine.backends.disk_space.changes()
    except HostError:
        return ()


def disks_json(
    disks: Sequence[Mapping[str, str]], sample: Sample | None, full: Collection[str] = ()
) -> Sequence[Mapping[str, object]]:
    """Return the disks of one task, each with what the task read and wrote on the device under it.

    Args:
        disks: as the lock file has them.
        sample: of the task; None: it does not run.
    """
    counted = sample.usage.disks or {} if sample is not None else {}
    return [_disk_json(disk, counted) | ({"full": True} if disk.get("disk") in full else {}) for disk in disks]


def _disk_json(disk: Mapping[str, str], counted: Mapping[str, Io]) -> dict[str, object]:
    devices = disk.get("devices", "").split()
    known = {key: value for key, value in disk.items() if key not in ("devices", "io")}
    limits = dict(word.split("=", 1) for word in disk.get("io", "").split())
    used = next((counted[device] for device in devices if device in counted), None)
    counts = {key: value for key in COUNTS if (value := getattr(used, key, None)) is not None}
    return {
        **known,
        **({"devices": devices} if devices else {}),
        **({"io_limits": limits} if limits else {}),
        **({"device_io": counts} if counts else {}),
    }
