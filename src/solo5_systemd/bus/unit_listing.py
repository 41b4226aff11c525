"""Rows of PID 1's list of units, without the modules that a whole state takes: completion needs names only."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from solo5_systemd.names import TaskName, UnitKind, task_of_unit


class ListedUnit(NamedTuple):
    """A unit in the reply of ListUnits: org.freedesktop.systemd1(5), the structure `ssssssouso`."""

    unit: str
    description: str
    load: str
    active: str
    sub: str
    following: str
    path: str
    job: int
    job_type: str
    job_path: str

    @property
    def task(self) -> TaskName | None:
        """Return the task; None if it is not a task's unit."""
        return task_of_unit(self.unit)

    @property
    def kind(self) -> UnitKind:
        """Return the type of the unit."""
        return UnitKind(self.unit.rpartition(".")[2])

    @property
    def over(self) -> bool:
        """Return whether the unit is over, as in `UnitState.over`, or not a task's."""
        inactive = self.active in ("inactive", "failed") and self.job_type not in ("start", "restart")
        return inactive or self.task is None

    def properties(self) -> Mapping[str, object]:
        """Return the D-Bus properties that are in the listing."""
        return {
            "ActiveState": self.active,
            "SubState": self.sub,
            "Description": self.description,
            "JobType": self.job_type,
        }


def loaded(rows: Iterable[Sequence[Any]]) -> list[ListedUnit]:
    """Return the loaded units of a listing."""
    return [row for row in map(ListedUnit._make, rows) if row.load == "loaded"]


def task_names(rows: Iterable[ListedUnit], *, ended: bool) -> list[TaskName]:
    """Return the tasks of units; without `ended`, of those that are not over."""
    return [task for row in rows if (task := row.task) is not None and (ended or not row.over)]
