"""Loss and return of a ready task: lost after some failed probes in sequence, ready again after one that succeeds."""

from enum import StrEnum

LOST_AFTER = 3
"""Failed probes in sequence after which a task counts as lost: any network may lose a single packet."""


class Change(StrEnum):
    """A change of a task's readiness."""

    LOST = "lost"
    REGAINED = "regained"


class Pulse:
    """The count of failed probes in sequence, of one ready task."""

    def __init__(self) -> None:
        self._failed = 0

    def count(self, *, answered: bool) -> Change | None:
        """Count the result of one probe, and return the change that it makes, if any."""
        before, self._failed = self._failed, 0 if answered else self._failed + 1
        if answered:
            return Change.REGAINED if before >= LOST_AFTER else None
        return Change.LOST if self._failed == LOST_AFTER else None
