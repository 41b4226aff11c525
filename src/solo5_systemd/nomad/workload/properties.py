"""Merge a job's unit properties with the operator's. A job may lower a limit, and raise none."""

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from solo5_systemd.errors import InvalidRequestError
from solo5_systemd.unit.properties import parse_property
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


def merged(job: Assignments, operator: Assignments, allowed: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Return the properties of both, in the order in which they must be set.

    Args:
        job: the properties in the task options.
        operator: the default properties of the plugin configuration.
        allowed: names that a job may use.

    Raises:
        InvalidRequestError: the job uses another name, or a value that is malformed or above the limit.
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
