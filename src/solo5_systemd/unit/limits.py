"""The cgroup v2 controllers that the limits of a task need (systemd.resource-control(5))."""

from collections.abc import Collection, Iterator

from solo5_systemd.unit.property_table import LIMITS
from solo5_systemd.workload import DEFAULT_MEMORY, Workload

CONTROLLERS = ("cpu", "cpuset", "memory", "pids")
"""The controllers that every task needs. `io` is left out: only a unit property of the task can require it."""


def missing(controllers: Collection[str] | None) -> tuple[str, ...]:
    """Return the `CONTROLLERS` that the unified hierarchy lacks; None: there is no unified hierarchy."""
    return tuple(name for name in CONTROLLERS if name not in (controllers or ()))


def unenforced(workload: Workload, controllers: Collection[str]) -> dict[str, str]:
    """Return the limits of a workload that the kernel will not enforce, each with its missing controller.

    Args:
        workload: its memory counts as a limit unless it is the default.
        controllers: of the unified hierarchy.
    """
    needed = ((name, LIMITS[name]) for name in _limits(workload) if name in LIMITS)
    return {name: controller for name, controller in needed if controller not in controllers}


def _limits(workload: Workload) -> Iterator[str]:
    if workload.memory != DEFAULT_MEMORY:
        yield "MemoryMax"
    if workload.cpus is not None:
        yield "CPUQuota"
    if workload.cpu_weight is not None:
        yield "CPUWeight"
    yield from (name for name, _ in workload.properties)
