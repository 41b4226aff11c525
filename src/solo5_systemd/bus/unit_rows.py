"""States of units from rows of PID 1's list and properties."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

from solo5_systemd.bus.peers import UNIT
from solo5_systemd.bus.unit_exports import STARTED, ExportedState
from solo5_systemd.bus.unit_listing import ListedUnit
from solo5_systemd.cgroup.scope_xattrs import ScopeFields
from solo5_systemd.names import UnitKind
from solo5_systemd.unit.state import (
    TYPE_END_PROPERTIES,
    TYPE_PROPERTIES,
    UNIT_END_PROPERTIES,
    UNIT_PROPERTIES,
    UnitState,
    unit_state,
)

INTERFACES = {
    UnitKind.SERVICE: "org.freedesktop.systemd1.Service",
    UnitKind.SCOPE: "org.freedesktop.systemd1.Scope",
}


@cache
def _wanted(kind: UnitKind, *, over: bool) -> Sequence[tuple[str, str]]:
    of_type = TYPE_PROPERTIES[kind] + (TYPE_END_PROPERTIES[kind] if over else ())
    of_unit = UNIT_PROPERTIES + (UNIT_END_PROPERTIES if over else ())
    return [(INTERFACES[kind], name) for name in of_type] + [(UNIT, name) for name in (*of_unit, "LoadState")]


@cache
def _in_files(kind: UnitKind) -> frozenset[str]:
    """Return the properties of a running unit that have to be in files."""
    return frozenset(name for _, name in _wanted(kind, over=False)) - {STARTED, "LoadState"}


def wanted(row: ListedUnit) -> Sequence[tuple[str, str]]:
    """Return interface and name of each property of a unit to read, LoadState last."""
    return _wanted(row.kind, over=row.over)


class UnitStates:
    """Makes states of units from rows and properties.

    Args:
        exports: properties of units in files.
        marks: fields of scopes.
    """

    def __init__(self, exports: ExportedState, marks: ScopeFields) -> None:
        self._exports = exports
        self._marks = marks

    def exported(self, rows: Sequence[ListedUnit]) -> dict[str, dict[str, object]]:
        """Return the properties of running units, by unit, if files contain all but the start time."""
        control_groups = self._exports.control_groups()
        found: dict[str, dict[str, object]] = {}
        for row in rows:
            if not row.over and row.unit in control_groups:
                properties = self._exports.properties(row.unit, control_groups[row.unit])
                if _in_files(row.kind) <= properties.keys():
                    found[row.unit] = properties
        return found

    def read(self, row: ListedUnit, properties: dict[str, object]) -> UnitState | None:
        """Return the state from the properties of `wanted`, or None if the unit was unloaded meanwhile."""
        # PID 1 has properties for any unit name.
        if properties.pop("LoadState", None) != "loaded":
            return None
        return self.state(row, properties)

    def state(self, row: ListedUnit, properties: Mapping[str, object]) -> UnitState | None:
        """Return the state of a unit from its properties, and of a scope from its extended attribute."""
        state = unit_state(row.unit, {**properties, **row.properties()})
        if state is None or row.kind is not UnitKind.SCOPE or not state.control_group:
            return state
        return replace(state, log_fields=self._marks.read(state.control_group))


def needs_start_time(row: ListedUnit, exported: Mapping[str, object]) -> bool:
    """Return whether the start time has to be read from D-Bus; a scope has none."""
    return row.kind is not UnitKind.SCOPE and STARTED not in exported
