"""The unit properties of a task: the job's, which may only lower the operator's limits, and its reserved cores."""

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.nomad.config.plugin import PluginConfig
from solo5_systemd.nomad.config.task import TaskOptions
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.task.properties import parse_property
from solo5_systemd.task.property_types import parse_cpus
from solo5_systemd.unit.translate import TASKS_MAX

Assignments = Sequence[tuple[str, str]]

USUAL: Mapping[str, str] = {"TasksMax": str(TASKS_MAX), "LimitCORE": "0", "LimitNOFILE": "524288"}
"""Limits that apply if the operator sets none; that of file descriptors is systemd's (systemd-system.conf(5)).

All other properties are unlimited by default, so a job can only lower them.
"""

_LIMITS = frozenset(
    "LimitAS LimitCORE LimitDATA LimitFSIZE LimitMEMLOCK LimitNOFILE LimitNPROC LimitSTACK MemoryHigh RuntimeMaxSec "
    "TasksMax".split()
)
_OF_DEVICES = frozenset("IOReadBandwidthMax IOReadIOPSMax IOWriteBandwidthMax IOWriteIOPSMax".split())
_ADDING_UP = _OF_DEVICES | {"SystemCallFilter"}


def unit_properties(
    task: wire.TaskConfig, options: TaskOptions, plugin: PluginConfig, nodes: Mapping[int, str]
) -> tuple[tuple[str, str], ...]:
    """Return the unit properties of a task, in the order in which they must be set.

    Args:
        nodes: the processors of each NUMA node of the host.

    Raises:
        InvalidRequestError: the job uses a property that it may not, or a value that is malformed or above the limit.
    """
    found = merged_properties(options.properties, plugin.defaults.properties, plugin.allowed_properties)
    if not (cpus := task.resources.linux_resources.cpuset_cpus):
        return found
    # Reserved cores are the scheduler's decision: no property may override them.
    found = (*((key, text) for key, text in found if key != "AllowedCPUs"), ("AllowedCPUs", cpus))
    if "AllowedMemoryNodes" in dict(found) or not (near := _memory_nodes(cpus, nodes)):
        return found
    return (*found, ("AllowedMemoryNodes", near))


def _memory_nodes(cpus: str, nodes: Mapping[int, str]) -> str:
    """Return the NUMA nodes that have these processors; empty for all nodes, and where the host has only one."""
    reserved = int.from_bytes(parse_cpus(cpus), "little")
    near = [number for number, own in nodes.items() if reserved & int.from_bytes(parse_cpus(own), "little")]
    return ",".join(map(str, near)) if len(near) < len(nodes) else ""


def merged_properties(job: Assignments, operator: Assignments, allowed: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Return the properties of job and operator, in the order in which they must be set.

    A job may lower a limit, and raise none.
    """
    names, base = frozenset(allowed), {**USUAL, **dict(operator)}
    for key, text in job:
        if key not in names:
            raise InvalidRequestError(
                f"config.properties.{key} may not be set by a job: expected one of {', '.join(sorted(names))}.",
                "The operator allows more in plugin.solo5.config.allowed_properties.",
            )
        if key in base and _is_looser(key, text, base[key]):
            raise InvalidRequestError(
                f"config.properties.{key} is {text!r}: expected no more than {base[key]!r}, which holds without it.",
                f"The operator raises it in plugin.solo5.config.defaults.properties.{key}.",
            )
    # Assignments of the others add up in systemd, so that the operator's must stay.
    replaced = {key for key, _ in job} - _ADDING_UP
    return (*((key, text) for key, text in operator if key not in replaced), *job)


def _is_looser(key: str, text: str, base: str) -> bool:
    """Return whether a job's limit is above the operator's; limits of different devices are independent."""
    if key in _OF_DEVICES:
        (device, most), (limited, least) = _of_device(key, text), _of_device(key, base)
        return device == limited and most > least
    return key in _LIMITS and _number(key, text) > _number(key, base)


def _number(key: str, text: str) -> int:
    return cast("int", parse_property(key, text).value)


def _of_device(key: str, text: str) -> tuple[str, int]:
    [found] = cast("list[tuple[str, int]]", parse_property(key, text).value)
    return found
