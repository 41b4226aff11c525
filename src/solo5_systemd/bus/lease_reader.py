"""Reads of networks: the state of solo5-networkd on disk, and the kernel's counters."""

import json
import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from solo5_systemd.base.event_loop import off_the_loop
from solo5_systemd.base.names import TaskName

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from solo5_systemd.base.names import DeviceName
    from solo5_systemd.network.endpoints import Endpoints
    from solo5_systemd.network.model import LeaseRecord, NetworkOverview, RecordedRepair
    from solo5_systemd.network.tap_counters import Traffic

STATE = "/run/solo5/network"
DIRECTORY = f"{STATE}/tasks"


class NetworkReader(ABC):
    """The networks of solo5-networkd, its state on disk, and the kernel's counters.

    Files and the kernel are read with or without an event loop; what is read of all tasks, in a thread beside a loop.
    Modules are imported where there is something to read, for startup time.
    """

    def __init__(self, state: str = STATE) -> None:
        self._state = state

    @abstractmethod
    async def networks(self) -> "Sequence[NetworkOverview]":
        """Return all networks, configured or in use."""

    @abstractmethod
    async def awake_because(self, task: TaskName) -> str:
        """Return what keeps a task awake; empty: nothing, or it never sleeps."""

    async def record(self, task: TaskName) -> "LeaseRecord | None":
        """Return the lease record of a task; None without one."""
        from solo5_systemd.network.lease_files import read_lease_record

        return read_lease_record(task, self._directory)

    async def records(self) -> "Sequence[LeaseRecord]":
        """Return all lease records."""
        from solo5_systemd.network.lease_files import read_lease_records

        return await off_the_loop(lambda: read_lease_records(self._directory))

    async def endpoints(self) -> "Mapping[TaskName, Endpoints]":
        """Return the addresses and ports of all lease records."""
        return await off_the_loop(lambda: read_endpoints(f"{self._state}/tasks"))

    async def recent_repairs(self) -> "Sequence[RecordedRepair]":
        """Return the last repairs, newest first."""
        if not os.path.exists(f"{self._state}/repairs.json"):  # noqa: PTH110 - pathlib is imported late, too
            return ()
        from solo5_systemd.network.lease_files import read_repairs

        return read_repairs(self._directory)

    async def traffic(self) -> "Mapping[TaskName, Mapping[DeviceName, Traffic]]":
        """Return the kernel's counters of every tap, by task and NIC."""
        from solo5_systemd.network.namespaces import read_traffic_elsewhere
        from solo5_systemd.network.tap_counters import read_traffic

        return read_traffic() | await off_the_loop(lambda: read_traffic_elsewhere(self._directory))

    @property
    def _directory(self) -> "Path":
        from pathlib import Path

        return Path(self._state)


def read_endpoints(directory: str = DIRECTORY) -> "dict[TaskName, Endpoints]":
    """Return the endpoints of each task with a lease record; unreadable records are skipped."""
    try:
        names = os.listdir(directory)  # noqa: PTH208 - without pathlib, for startup time
    except OSError:
        return {}
    found = {}
    for name in names:
        task, _, suffix = name.rpartition(".")
        endpoints = _read(f"{directory}/{name}") if suffix == "json" else None
        if endpoints is not None:
            found[TaskName(task)] = endpoints
    return found


def _read(path: str) -> "Endpoints | None":
    from solo5_systemd.network.endpoints import endpoints_of  # imported here for startup time, as for no record

    try:
        with open(path, "rb") as file:  # noqa: PTH123 - as above
            record = json.loads(file.read())
    except (OSError, ValueError, RecursionError):
        return None
    return endpoints_of(record)
