"""The operator's policy for the tasks of other people's jobs, as options of the plugin configuration of a Nomad client.

`check_policy` of `engine.plan` compares a task with it, when all of its defaults are filled in.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from solo5_systemd.base.decode import Fields
from solo5_systemd.base.names import NetworkName, Target, UnitKind
from solo5_systemd.settings.records import Type, integer, setting, type_of
from solo5_systemd.storage.io_limits import NO_IO_LIMITS, IoLimits

_DISK_PATTERN = re.compile(r"[A-Za-z0-9_.*?-]{1,64}", re.ASCII)


def each_fits(fits: Callable[[str], object], expected: str) -> Type:
    """Return the type of lists of texts that all fit; `expected` has the key as `{key}`."""

    def read(fields: Fields, key: str) -> tuple[str, ...]:
        found = fields.texts(key)
        for each in found:
            if not fits(each):
                raise fields.wrong(key, each, expected.format(key=key))
        return found

    return Type(read, list, "list(string)")


def _units(fields: Fields, key: str) -> tuple[UnitKind, ...]:
    return type_of(tuple[UnitKind, ...]).read(fields, key) or (UnitKind.SERVICE,)


_DISK_PATTERNS = each_fits(_DISK_PATTERN.fullmatch, 'names of disks, with * and ?, such as {key} = ["web-*"]')
_CEILING = Annotated[int | None, integer(0, 1 << 30)]


# fmt: off
@dataclass(frozen=True, kw_only=True)
class Ceilings:
    """The `ceilings` block: the most that a job may request; None: no ceiling."""

    memory_mb: _CEILING = setting("Of `memory` and `memory_max`, in MiB.", default=None)
    nics: _CEILING = setting("NICs of the image.", default=None)
    blocks: _CEILING = setting("Disks of the image.", default=None)
    ports: _CEILING = setting("Published ports, with those that are published by default.", default=None)
    image_mb: Annotated[int, integer(0, 1 << 30)] = setting(  # unikernels have a few MiB, the largest some fifty
        "The size of the image's file, in MiB; at most 4096.", default=256
    )
    disk_mb: Annotated[int, integer(0, 1 << 30)] = setting(
        "The size of a disk that a job creates, in MiB.", default=1024
    )
    io: IoLimits = setting(
        "The [I/O limits](nomad-job.md#io-limits) of each disk, which a job can lower.", default=NO_IO_LIMITS
    )


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What jobs may have."""

    networks: tuple[NetworkName, ...] = setting(
        "Networks that jobs may join. A NIC without a `nic` block joins `default`, which must then be listed.",
        default=(), shown="`[]` (any)",
    )
    allowed_units: Annotated[tuple[UnitKind, ...], Type(_units, list, "list(string)")] = setting(
        "Values of `unit` that jobs may set. A scope has no sandbox by systemd: set `[\"service\", \"scope\"]` only if "
        "all jobs are trusted.", default=(UnitKind.SERVICE,),
    )
    allowed_tenders: tuple[Target, ...] = setting(
        "Tenders that tasks may run under, whether the job sets `tender` or the image determines it.",
        default=(), shown="`[]` (any)",
    )
    allowed_disks: Annotated[tuple[str, ...], _DISK_PATTERNS] = setting(
        "Named disks (`solo5ctl disk`) that jobs may use, copy and create: names, with `*` and `?`, such as "
        "`[\"web-*\"]`.", default=(), shown="`[]` (none)",
    )
    ceilings: Ceilings = setting("The most that a job may request: [below](#ceilings).", default=Ceilings())
    allow_missing_controllers: bool = setting(
        "`true`: the node is healthy even if the controllers `cpu`, `cpuset`, `memory` and `pids` are not those of "
        "cgroup v2 (a hybrid or legacy hierarchy, `cgroup_disable=`), and limits have no effect. Also starts tasks "
        "with I/O limits of disks without the controller `io`, which are otherwise refused.", default=False,
    )
# fmt: on
