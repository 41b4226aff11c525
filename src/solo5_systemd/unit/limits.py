"""Which limits of a task need which controller of cgroup v2 (systemd.resource-control(5))."""

from collections.abc import Collection, Iterator

from solo5_systemd.workload import DEFAULT_MEMORY, Workload

CONTROLLERS = ("cpu", "cpuset", "memory", "pids")
"""Those that the limits of every task need. `io` is not among them: only a property of its own can ask for it."""

_CONTROLLER = {
    **dict.fromkeys(("MemoryHigh", "MemoryLow", "MemoryMax", "MemoryMin", "MemorySwapMax"), "memory"),
    **dict.fromkeys(("CPUQuota", "CPUQuotaPeriodSec", "CPUWeight"), "cpu"),
    **dict.fromkeys(("AllowedCPUs", "AllowedMemoryNodes"), "cpuset"),
    **dict.fromkeys(("IOReadBandwidthMax", "IOReadIOPSMax", "IOWeight", "IOWriteBandwidthMax", "IOWriteIOPSMax"), "io"),
    "TasksMax": "pids",
}


def missing(controllers: Collection[str] | None) -> tuple[str, ...]:
    """Return those of `CONTROLLERS` that the unified hierarchy lacks; None stands for no unified hierarchy."""
    return tuple(name for name in CONTROLLERS if name not in (controllers or ()))


def unenforced(workload: Workload, controllers: Collection[str]) -> dict[str, str]:
    """Return the limits that a workload sets and the kernel will not enforce, each with the controller that it needs.

    Args:
        workload: its memory counts as a limit unless it is the default.
        controllers: those of the unified hierarchy.
    """
    needed = ((name, _CONTROLLER[name]) for name in _limits(workload) if name in _CONTROLLER)
    return {name: controller for name, controller in needed if controller not in controllers}


def _limits(workload: Workload) -> Iterator[str]:
    if workload.memory != DEFAULT_MEMORY:
        yield "MemoryMax"
    if workload.cpus is not None:
        yield "CPUQuota"
    if workload.cpu_weight is not None:
        yield "CPUWeight"
    yield from (name for name, _ in workload.properties)
