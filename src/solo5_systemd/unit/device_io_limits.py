"""I/O limits of disks as properties of the unit.

A unit has one limit of a kind for each device (`io.max` of its cgroup). The path is /dev/block/MAJOR:MINOR, which
systemd takes as it is: the path of a disk could resolve to another device by then, or have characters that a unit file
cannot have.
"""

from collections.abc import Iterable, Iterator, Sequence

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.storage.io_limits import NO_IO_LIMITS, IoLimits
from solo5_systemd.storage.model import Backing, Disk
from solo5_systemd.task.properties import DISK_LIMITS, Property, unit_property


def io_properties(disks: Sequence[Disk], names: Iterable[str]) -> Iterator[Property]:
    """Return the properties of the limits of all disks.

    Raises:
        InvalidRequestError: a limited disk has no device, disks of one device have different limits, or a property
            beside limits devices, too.
    """
    limits = _by_device([disk for disk in disks if disk.backing is not Backing.ARCHIVE])
    if not limits:
        return iter(())
    if taken := sorted(set(names) & set(DISK_LIMITS.values())):
        raise InvalidRequestError(
            f"unit property {taken[0]} is set, and an I/O limit of a disk: expected one of both, since systemd would "
            "let one of them replace the other.",
            "Remove the property, or the limits of the disks.",
        )
    return _properties(limits)


def _properties(limits: dict[str, IoLimits]) -> Iterator[Property]:
    for key, directive in DISK_LIMITS.items():
        value = [(f"/dev/block/{number}", each.each()[key]) for number, each in limits.items()]
        if known := [(device, limit) for device, limit in value if limit is not None]:
            yield unit_property(directive, known)


def _by_device(disks: Sequence[Disk]) -> dict[str, IoLimits]:
    """Return the limits of each device with a limited disk."""
    found: dict[str, Disk] = {}
    for disk in disks:
        if not disk.devices:
            if disk.io != NO_IO_LIMITS:
                raise InvalidRequestError(
                    f"{disk} has I/O limits ({disk.io}), and no block device: expected a "
                    "device, or a file of a file system that is on one.",
                    "A file in memory, of a network, of an overlay, or on several devices cannot be limited.",
                )
            continue
        other = found.setdefault(disk.devices[-1].number, disk)
        if other.io != disk.io:
            raise InvalidRequestError(
                f"disks {other.disk} ({_text(other.io)}) and {disk.disk} ({_text(disk.io)}) are on one "
                f"device, {disk.devices[-1].name}: expected equal I/O limits, since the kernel limits a task by device."
            )
    return {number: disk.io for number, disk in found.items() if disk.io != NO_IO_LIMITS}


def _text(limits: IoLimits) -> str:
    return str(limits) or "no limit"
