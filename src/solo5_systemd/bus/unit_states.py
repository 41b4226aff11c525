"""States of units from properties: of running units in files, else from rows and properties of PID 1.

The files are private to systemd: callers read a property that is missing here from D-Bus
(docs/decisions/unit-exports.md).
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache

from solo5_systemd.base.declared_units import declared_task, prepared_fields
from solo5_systemd.base.names import INVOCATION_LINK, UNITS, UnitKind
from solo5_systemd.base.vanishing_files import read
from solo5_systemd.bus.peers import INTERFACES, UNIT, ListedUnit
from solo5_systemd.cgroup.hierarchy import read_fields, unified, units, write_fields
from solo5_systemd.task.log_fields import unescaped
from solo5_systemd.unit.state import (
    TYPE_END_PROPERTIES,
    TYPE_PROPERTIES,
    UNIT_END_PROPERTIES,
    UNIT_PROPERTIES,
    UnitState,
    unit_state,
)

STARTED = "ExecMainStartTimestamp"
"""The property with the start time, in microseconds since the epoch."""

ATTRIBUTE = "user.solo5.started"
"""Invocation and start time of a service, both as text, separated by a blank."""

_TIME_DIGITS = 17
"""Digits of a time in microseconds before the year 5138: a longer number is no time that can be shown."""

_LENGTH_SIZE = 8
"""Bytes of the length of an assignment."""


def _started(directory: str, invocation: object) -> dict[str, object]:
    try:
        of, _, started = os.getxattr(directory, ATTRIBUTE).partition(b" ")
    except OSError:
        return {}
    same = isinstance(invocation, bytes) and of == invocation.hex().encode()
    return {STARTED: int(started)} if same and started.isdigit() and len(started) <= _TIME_DIGITS else {}


def _log_fields(data: bytes | None) -> dict[str, object]:
    """Return LogExtraFields=, parsed: each assignment follows its length, 64 bits little-endian."""
    if data is None:
        return {}
    text = data.decode("latin-1")  # a character for each byte
    fields: dict[str, str] = {}
    position = 0
    while position < len(data):
        start = position + _LENGTH_SIZE
        position = start + int.from_bytes(data[position:start], "little")
        name, equals, word = text[start:position].partition("=")
        if not word.isascii():
            word = word.encode("latin-1").decode("utf-8", "replace")
        if equals:
            fields[name] = unescaped(word) if "\\" in word else word
    return {"LogExtraFields": fields} if position == len(data) else {}


@cache
def wanted(kind: UnitKind, *, over: bool) -> Sequence[tuple[str, str]]:
    """Return interface and name of each property of a unit to read, LoadState last."""
    of_type = TYPE_PROPERTIES[kind] + (TYPE_END_PROPERTIES[kind] if over else ())
    of_unit = UNIT_PROPERTIES + (UNIT_END_PROPERTIES if over else ())
    return [(INTERFACES[kind], name) for name in of_type] + [(UNIT, name) for name in (*of_unit, "LoadState")]


@cache
def _in_files(kind: UnitKind) -> frozenset[str]:
    """Return the properties of a running unit that have to be in files."""
    return frozenset(name for _, name in wanted(kind, over=False)) - {STARTED, "LoadState"}


class UnitStates:
    """The states of units, made from rows and properties; what files have of running units is world-readable."""

    def __init__(self) -> None:
        self._root = unified()

    def record_start(self, begun: UnitState, marks: Mapping[str, str]) -> None:
        """Write what PID 1's files lack of a run that has just begun: log fields of a scope, start time of a service.

        Errors of the latter are ignored, as the time is in PID 1.
        """
        if marks and begun.control_group:
            write_fields(f"{self._root}{begun.control_group}", marks)
        if begun.started and begun.control_group:
            with suppress(OSError):  # the cgroup was removed, or the kernel has no such xattrs
                value = f"{begun.invocation} {begun.started}".encode()
                os.setxattr(f"{self._root}{begun.control_group}", ATTRIBUTE, value)

    def link(self, unit: str) -> str:
        """Return the path of the symbolic link to the invocation ID of a unit that is active."""
        return f"{UNITS}/{INVOCATION_LINK}{unit}"

    def invocation(self, unit: str) -> str:
        """Return the invocation ID of a unit in hexadecimal digits; empty if the unit is over."""
        try:
            return os.readlink(self.link(unit))  # noqa: PTH115 - for a string
        except OSError:
            return ""

    def has_run(self, state: UnitState) -> bool:
        """Return whether a run goes on: the link has its invocation."""
        return bool(state.invocation) and self.invocation(state.unit) == state.invocation

    def frozen(self, control_group: str) -> bool | None:
        """Return whether a cgroup is frozen; None if it was removed."""
        text = read(f"{self._root}{control_group}/cgroup.freeze")
        return None if text is None else text.strip() == b"1"

    def properties(self, unit: str, control_group: str) -> dict[str, object]:
        """Return the D-Bus properties of a unit that files contain, as D-Bus has them; empty if the unit is over."""
        frozen = self.frozen(control_group)
        if frozen is None:
            return {}
        found: dict[str, object] = {"ControlGroup": control_group, "FreezerState": "frozen" if frozen else "running"}
        with suppress(ValueError):
            found |= {"InvocationID": run} if (run := bytes.fromhex(self.invocation(unit))) else {}
        if unit.endswith(UnitKind.SERVICE):
            pids = (read(f"{self._root}{control_group}/cgroup.procs") or b"").split()
            if len(pids) == 1 and int(pids[0]):  # of several the main one is not in a file
                found["MainPID"] = int(pids[0])
            found |= _log_fields(read(f"{UNITS}/log-extra-fields:{unit}"))
            found |= _started(f"{self._root}{control_group}", found.get("InvocationID"))
        return found

    def exported(self, rows: Sequence[ListedUnit]) -> dict[str, dict[str, object]]:
        """Return the properties of running units, by unit, if files contain all but the start time."""
        control_groups = dict(units(self._root))
        found: dict[str, dict[str, object]] = {}
        for row in rows:
            if not row.over and row.unit in control_groups:
                properties = self.properties(row.unit, control_groups[row.unit])
                if _in_files(row.kind) <= properties.keys():
                    found[row.unit] = properties
        return found

    def state(self, row: ListedUnit, properties: Mapping[str, object]) -> UnitState | None:
        """Return the state of a unit from its properties, and of a scope from its extended attribute."""
        state = unit_state(row.unit, {**properties, "ActiveState": row.active, "JobType": row.job_type}, row.task)
        if state is None:
            return None
        if row.kind is UnitKind.SCOPE and state.control_group:
            return state._replace(log_fields=read_fields(f"{self._root}{state.control_group}"))
        if declared_task(row.unit) is not None:
            return state._replace(log_fields={**state.log_fields, **prepared_fields(state.task)})
        return state
