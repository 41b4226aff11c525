"""The addresses and published ports of all tasks from their lease records, for a list of hundreds of tasks.

A record is checked for what is shown only; `network.lease_json` checks all of it, in ten times as much time.
"""

import json
import os
from typing import TYPE_CHECKING

from solo5_systemd.base.names import TaskName

if TYPE_CHECKING:
    from solo5_systemd.engine.task import Endpoints, LeasedNic

DIRECTORY = "/run/solo5/network/tasks"

_VERSION = 1


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
