"""What had to be put back, and whose network it was."""

from collections.abc import Sequence
from dataclasses import dataclass

from solo5_systemd.names import TaskName


@dataclass(frozen=True, kw_only=True)
class Repair:
    """`tasks` had their network repaired; `what` is a sentence for their owners."""

    tasks: Sequence[TaskName]
    what: str
