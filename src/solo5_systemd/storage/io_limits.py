"""I/O limits of disks: bytes and operations per second, in each direction.

The kernel has limits of devices only (`io.max` of a cgroup): those of a disk hold for all I/O of its task on the device
of the disk.
"""

from dataclasses import dataclass, fields
from functools import partial
from typing import Annotated

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.settings.rate import LIMIT_MAX, per_second, short
from solo5_systemd.settings.records import Type, setting, text

BPS_MIN, IOPS_MIN = 100_000, 10
"""The lowest limits. A thread that waits for a limited request cannot be killed; a request has a megabyte or so."""


def io_limit(key: str, text: str) -> int:
    """Parse a limit: a number, or one with K, M, G or T, powers of 1000 as in IOReadBandwidthMax=.

    Raises:
        InvalidRequestError: malformed, or out of range; the sentence begins with the key.
    """
    value = per_second(text)
    is_bytes = key.endswith("bps")
    low = BPS_MIN if is_bytes else IOPS_MIN
    if not low <= value <= LIMIT_MAX:
        raise InvalidRequestError(
            f"{key} {text!r} is not an I/O limit: expected {short(low)} to {short(LIMIT_MAX)} per second, such as "
            f"{'10M' if is_bytes else '500'}."
        )
    return value


def _limit(key: str) -> Type:
    return text(partial(io_limit, key), short)


@dataclass(frozen=True, kw_only=True)
class IoLimits:
    """Limits of bytes and operations per second; None: none. The keys are those of `--block` and of a job's `io`."""

    read_bps: Annotated[int | None, _limit("read_bps")] = setting("Bytes read per second.", default=None)
    write_bps: Annotated[int | None, _limit("write_bps")] = setting("Bytes written per second.", default=None)
    read_iops: Annotated[int | None, _limit("read_iops")] = setting("Reads per second.", default=None)
    write_iops: Annotated[int | None, _limit("write_iops")] = setting("Writes per second.", default=None)

    def __str__(self) -> str:
        return " ".join(f"{key}={short(value)}" for key, value in vars(self).items() if value is not None)


KEYS = tuple(each.name for each in fields(IoLimits))
NO_IO_LIMITS = IoLimits()


def lowered(wanted: IoLimits, cap: IoLimits, where: str) -> IoLimits:
    """Return a disk's limits, those that it lacks from the operator's.

    Raises:
        InvalidRequestError: one is above the operator's.
    """
    most = vars(cap)
    for key, value in vars(wanted).items():
        limit = most[key]
        if value is not None and limit is not None and value > limit:
            raise InvalidRequestError(
                f"{where}.{key} is {short(value)}: expected {short(limit)} per second or less, this node's ceiling.",
                "The operator sets it in plugin.solo5.config.ceilings.io.",
            )
    return IoLimits(**{key: most[key] if value is None else value for key, value in vars(wanted).items()})
