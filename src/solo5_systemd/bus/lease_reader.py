"""The state of solo5-networkd on disk: lease records, and what lists of hundreds of tasks show of them.

For these lists, a record is checked for what is shown only; `network.lease_json` checks all of it, in ten times as much
time.
"""

import json
import os
from typing import TYPE_CHECKING

from solo5_systemd.base.event_loop import off_the_loop
from solo5_systemd.base.names import TaskName

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from solo5_systemd.base.names import DeviceName
    from solo5_systemd.engine.task import Endpoints, LeasedNic
    from solo5_systemd.network.model import LeaseRecord, RecordedRepair
    from solo5_systemd.network.tap_counters import Traffic

STATE = "/run/solo5/network"
DIRECTORY = f"{STATE}/tasks"

_VERSION = 1


class RecordedNetworks:
    """What of `backends.NetworkQueries` is read from files and the kernel, with or without an event loop.

    What is read of all tasks is read in a thread beside a loop. Modules are imported where there is something to read,
    for startup time.
    """

    def __init__(self, state: str = STATE) -> None:
        self._state = state

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
    from solo5_systemd.engine.task import Endpoints  # imported here for startup time, as where there is no record

    try:
        with open(path, "rb") as file:  # noqa: PTH123 - as above
            record = json.loads(file.read())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or record.get("version") != _VERSION:
        return None
    try:
        held = record["reservation"]
        nics, ports = tuple(map(_leased, held.get("leases", ()))), tuple(map(_port, held.get("ports", ())))
    except (KeyError, TypeError, AttributeError):
        return None
    namespace = record.get("namespace", "")
    sleep = (record.get(key, 0) for key in ("asleep", "wakes", "slept"))
    asleep, wakes, slept = (each if type(each) is int else 0 for each in sleep)
    waits = record.get("state") == "waiting"
    return Endpoints(nics, ports, namespace if isinstance(namespace, str) else "", asleep, wakes, slept, waits)


def _leased(lease: dict[str, object]) -> "LeasedNic":
    from solo5_systemd.engine.task import LeasedNic

    ipv4, ipv6 = (_text(lease.get(key, "")).partition("/")[0] for key in ("ipv4", "ipv6"))
    return LeasedNic(_text(lease["nic"]), _text(lease["network"]), ipv4, _text(lease["tap"]), ipv6)


def _port(port: dict[str, object]) -> tuple[str, int, int, str]:
    host_port, inner = port["host_port"], port["port"]
    if type(host_port) is not int or type(inner) is not int:
        raise TypeError(port)
    return _text(port.get("host_ip", "")), host_port, inner, _text(port["protocol"])


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value
