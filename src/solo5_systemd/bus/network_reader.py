"""Reads of networks: the state of solo5-networkd on disk, and the kernel's counters."""

import json
import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from solo5_systemd.base.event_loop import off_the_loop
from solo5_systemd.base.names import TaskName
from solo5_systemd.base.vanishing_files import read

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from solo5_systemd.base.names import DeviceName
    from solo5_systemd.network.endpoints import Endpoints, Problem
    from solo5_systemd.network.model import LeaseRecord
    from solo5_systemd.network.overview import Repair
    from solo5_systemd.network.tap_counters import Traffic
    from solo5_systemd.network.use import NetworkUse

STATE = "/run/solo5/network"


class NetworkReader(ABC):
    """The networks of solo5-networkd, its state on disk, and the kernel's counters.

    Files and the kernel are read with or without an event loop; what is read of all tasks, in a thread beside a loop.
    Modules are imported where there is something to read, for startup time.
    """

    @abstractmethod
    async def networks(self) -> "Sequence[NetworkUse]":
        """Return the use of all networks, configured or in use."""

    @abstractmethod
    async def awake_because(self, task: TaskName) -> str:
        """Return what keeps a task awake; empty: nothing, or it never sleeps."""

    async def record(self, task: TaskName) -> "LeaseRecord | None":
        """Return the lease record of a task; None without one."""
        from solo5_systemd.network.lease_files import read_lease_record

        return read_lease_record(task)

    async def records(self) -> "Sequence[LeaseRecord]":
        """Return all lease records."""
        from solo5_systemd.network.lease_files import read_lease_records

        return await off_the_loop(read_lease_records)

    async def endpoints(self) -> "Mapping[TaskName, Endpoints]":
        """Return the addresses and ports of all lease records."""
        return await off_the_loop(read_endpoints)

    async def recent_repairs(self) -> "Sequence[Repair]":
        """Return the last repairs, newest first."""
        from solo5_systemd.network.lease_files import read_repairs

        return read_repairs()

    async def problems(self) -> "Sequence[Problem]":
        """Return what only an operator can repair, of the last repairs."""
        return read_problems()

    async def traffic(self) -> "Mapping[TaskName, Mapping[DeviceName, Traffic]]":
        """Return the kernel's counters of every tap, by task and NIC."""
        from solo5_systemd.network.tap_counters import read_traffic

        found = read_traffic()
        if os.path.exists(f"{STATE}/namespaces"):  # noqa: PTH110 - as above
            from solo5_systemd.network.namespaces import read_traffic_elsewhere

            found |= await off_the_loop(read_traffic_elsewhere)
        return found


def read_problems() -> "Sequence[Problem]":
    """Return what only an operator can repair, of the last repairs; none where the file is missing or damaged."""
    try:
        document = json.loads(read(f"{STATE}/repairs.json") or b"")
    except (OSError, ValueError, RecursionError):
        return ()
    from solo5_systemd.network.endpoints import problems_of

    return problems_of(document)


def read_endpoints() -> "dict[TaskName, Endpoints]":
    """Return the endpoints of each task with a lease record; unreadable records are skipped."""
    directory = f"{STATE}/tasks"
    try:
        names = os.listdir(directory)  # noqa: PTH208 - without pathlib, for startup time
    except OSError:
        return {}
    tasks = [TaskName(name.removesuffix(".json")) for name in names if name.endswith(".json")]
    if not tasks:
        return {}
    from solo5_systemd.network.endpoints import endpoints_of  # imported here for startup time, as for no record

    found = {}
    for task in tasks:
        try:
            endpoints = endpoints_of(json.loads(read(f"{directory}/{task}.json") or b""))
        except (OSError, ValueError, RecursionError):
            continue
        if endpoints is not None:
            found[task] = endpoints
    return found
