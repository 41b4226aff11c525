"""The addresses and published ports of all tasks from their lease records, for a list of hundreds of tasks.

A record is checked for what is shown only; `network.lease_json` checks all of it, in ten times as much time.
"""

import json
import os

from solo5_systemd.engine.task import Endpoints, LeasedNic
from solo5_systemd.names import TaskName

DIRECTORY = "/run/solo5/network/tasks"

_VERSION = 1
_LEASE_TYPES = (*(str,) * 7, int, str, str)
_PORT_TYPES = (str, str, int, int, str)


def read_endpoints(directory: str = DIRECTORY) -> dict[TaskName, Endpoints]:
    """Return the endpoints of each task with a lease record; unreadable records are skipped.

    Args:
        directory: of the lease records.
    """
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


def _read(path: str) -> Endpoints | None:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - as above
            record = json.loads(file.read())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or record.get("version") != _VERSION:
        return None
    leases, ports = record.get("leases"), record.get("ports")
    if not isinstance(leases, list) or not all(map(_is_lease, leases)):
        return None
    if not isinstance(ports, list) or not all(map(_is_port, ports)):
        return None
    namespace = record.get("namespace", "")
    return Endpoints(
        tuple(map(_leased, leases)),
        tuple((host_ip, host_port, port, protocol) for _, host_ip, host_port, port, protocol in ports),
        namespace if isinstance(namespace, str) else "",
    )


def _leased(wire: list[str]) -> LeasedNic:
    nic, network, _, tap, ipv4, _, _, _, ipv6, _ = wire
    return LeasedNic(nic, network, ipv4.partition("/")[0], tap, ipv6.partition("/")[0])


def _is_lease(wire: object) -> bool:
    return isinstance(wire, list) and (*map(type, wire),) == _LEASE_TYPES


def _is_port(wire: object) -> bool:
    return isinstance(wire, list) and (*map(type, wire),) == _PORT_TYPES
