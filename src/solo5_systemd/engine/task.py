"""A task as a value, from its unit and its lease record; what the caller of its start provides."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from solo5_systemd.base.names import DeviceName, TaskName
from solo5_systemd.task.log_fields import NETWORK_NAMESPACE, OF_PLACEHOLDERS
from solo5_systemd.unit.state import ActiveState, UnitState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from solo5_systemd.cgroup.usage import Usage
    from solo5_systemd.network.model import Lease, Reservation
    from solo5_systemd.network.tap_counters import Traffic
    from solo5_systemd.unit.outcome import Outcome
    from solo5_systemd.unit.tender import Parts


_MEMORY_DIGITS = 20
"""Digits of the longest number of bytes."""


class Phase(StrEnum):
    """The phase of a task."""

    STARTING = "starting"
    RUNNING = "running"
    FROZEN = "frozen"
    HUNG = "hung"
    STOPPING = "stopping"
    ENDED = "ended"


class Task(NamedTuple):
    """One task.

    Attributes:
        outcome: None until it has ended.
        reservation: its leases and ports; None without any.
        asleep: since when it sleeps or is dormant, in microseconds since the epoch; 0: it is awake, or over.
    """

    state: UnitState
    phase: Phase
    outcome: "Outcome | None" = None
    reservation: "Reservation | None" = None
    asleep: int = 0

    @property
    def name(self) -> TaskName:
        """Return the name of the task."""
        return self.state.task

    @property
    def started(self) -> int:
        """Return the start of the tender in microseconds since the epoch; 0 for never."""
        return self.state.started

    @property
    def dormant(self) -> bool:
        """Return whether it has no process, and is started for its first packet."""
        return self.asleep > 0 and self.phase is Phase.ENDED

    @property
    def image(self) -> str:
        """Return the path of the image at the start; empty for a scope that is over."""
        return self.state.log_fields.get("SOLO5_IMAGE", "")

    @property
    def sha256(self) -> str:
        """Return the SHA-256 of the image, in hexadecimal digits; empty for a scope that is over."""
        return self.state.log_fields.get("SOLO5_IMAGE_SHA256", "")

    def of_placeholder(self, name: str) -> tuple[str, ...]:
        """Return the values of a placeholder such as `dns` that an argument has; empty: none has it."""
        text = self.state.log_fields.get(OF_PLACEHOLDERS[name], "")
        return tuple(text.split(",")) if text else ()

    @property
    def network_namespace(self) -> str:
        """Return the path of the network namespace that it shares with other programs; empty: the host's own."""
        return self.state.log_fields.get(NETWORK_NAMESPACE, "")

    @property
    def memory(self) -> int:
        """Return the task's memory in bytes; 0 if unknown."""
        text = self.state.log_fields.get("SOLO5_MEMORY", "")
        return int(text) if text.isascii() and text.isdigit() and len(text) <= _MEMORY_DIGITS else 0


_NONE: "Mapping[Any, Any]" = {}


class Sample(NamedTuple):
    """The current resource usage of one task.

    Attributes:
        drops: packets of each NIC that the packet filter has dropped, by rule; empty: not read.
        disks: names of the task's disks on each block device of the host; empty: not read.
    """

    usage: "Usage"
    nics: "Mapping[DeviceName, Traffic]"
    drops: "Mapping[DeviceName, Mapping[str, int]]" = _NONE
    disks: "Mapping[str, Sequence[str]]" = _NONE


def phase(state: UnitState, *, hung: bool) -> Phase:
    """Return the phase of a unit; `hung`: its tender is a zombie leader with live threads."""
    if state.over:
        return Phase.ENDED
    if hung:
        return Phase.HUNG
    match state.active:
        case ActiveState.ACTIVATING:
            return Phase.STARTING
        case ActiveState.DEACTIVATING:
            return Phase.STOPPING
        case _:
            return Phase.FROZEN if state.frozen else Phase.RUNNING


SpawnProcess = Callable[[Sequence[str], Sequence[int], str], AbstractAsyncContextManager[int]]
"""The caller's part in the start of a scope: provide a process that executes a command line once it is in the scope.

It is called with the command line, the file descriptors that the program has to inherit under these numbers, and the
journal namespace of the console. It yields the process ID, and ends the process if the block raises. The caller closes
the descriptors after a successful start, and only then.
"""


class StartCallbacks:
    """The progress callbacks of a start; here, without effect. They must not block."""

    def on_step(self, doing: str) -> None:
        """Called before each step, such as `reserving addresses`."""

    def on_preflight(self, parts: "Parts") -> None:
        """Called after preflight, before anything but the user is there; an error raised here fails the start."""

    def on_leases(self, leases: "Sequence[Lease]") -> None:
        """Called when addresses are reserved."""


QUIET = StartCallbacks()
