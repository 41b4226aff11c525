"""A task as people see it: one value, made from what PID 1 and the leases say."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from solo5_systemd.cgroup.usage import Usage
from solo5_systemd.names import DeviceName, TaskName
from solo5_systemd.network.model import Lease, Reservation
from solo5_systemd.network.tap_counters import Traffic
from solo5_systemd.unit.outcome import Outcome
from solo5_systemd.unit.state import ActiveState, UnitState
from solo5_systemd.workload import UnitKind

if TYPE_CHECKING:
    from solo5_systemd.image.manifest import Manifest
    from solo5_systemd.unit.tender import Tender


class Phase(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    FROZEN = "frozen"
    HUNG = "hung"
    STOPPING = "stopping"
    ENDED = "ended"


@dataclass(frozen=True, kw_only=True)
class Task:
    """One task.

    Attributes:
        state: its unit, as PID 1 has it.
        phase: in one word.
        outcome: how it ended, None while it has not.
        reservation: what it holds of the network, None for nothing.
    """

    state: UnitState
    phase: Phase
    outcome: Outcome | None = None
    reservation: Reservation | None = None

    @property
    def name(self) -> TaskName:
        return self.state.task

    @property
    def kind(self) -> UnitKind:
        return self.state.kind

    @property
    def unit(self) -> str:
        return self.state.unit

    @property
    def invocation(self) -> str:
        return self.state.invocation

    @property
    def pid(self) -> int:
        return self.state.main_pid

    @property
    def started(self) -> int:
        """Microseconds since the epoch, zero for never."""
        return self.state.started

    @property
    def ended(self) -> int:
        """Microseconds since the epoch, zero for never."""
        return self.state.ended

    @property
    def control_group(self) -> str:
        return self.state.control_group

    @property
    def image(self) -> str:
        """The path that the image had when the task was started; empty for a scope that is over."""
        return self.state.log_fields.get("SOLO5_IMAGE", "")

    @property
    def sha256(self) -> str:
        return self.state.log_fields.get("SOLO5_IMAGE_SHA256", "")

    @property
    def tender(self) -> str:
        return self.state.tender

    @property
    def memory(self) -> int:
        """Bytes of the allotment, zero where it is not known."""
        text = self.state.log_fields.get("SOLO5_MEMORY", "")
        return int(text) if text.isascii() and text.isdigit() else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Resource usage of one task, now.

    Attributes:
        nics: those that are connected.
    """

    usage: Usage
    nics: Mapping[DeviceName, Traffic]


@dataclass(frozen=True, kw_only=True)
class Started:
    """A task that has just been started: what its starter needs, at the price of few questions to PID 1.

    Attributes:
        name: the task's.
        unit: that runs it.
        invocation: systemd's InvocationID, in hexadecimal digits: another start of this name has another.
        pid: of the tender; zero where it has ended already.
        started: microseconds since the epoch.
        control_group: below the root of the hierarchy; empty where it is gone already.
        reservation: what it holds of the network, None for nothing.
        log_namespace: the journal namespace of its console; empty: the host's journal.
    """

    name: TaskName
    unit: str
    invocation: str
    pid: int
    started: int
    control_group: str
    reservation: Reservation | None
    log_namespace: str = ""


@dataclass(frozen=True, kw_only=True)
class StartedScope:
    """A process in a scope of its own.

    Attributes:
        argv: what it is to execute now: the tender's command line.
        invocation: systemd's InvocationID, in hexadecimal digits: another start of this name has another.
        control_group: below the root of the hierarchy.
    """

    argv: tuple[str, ...]
    invocation: str
    control_group: str


@dataclass(frozen=True, kw_only=True)
class Preflight:
    """What a start has found out before it makes anything.

    Attributes:
        image: the path that was asked for.
        sha256: of the image's content, in hexadecimal digits.
        manifest: what the image needs.
        tender: that will run it.
        memory: MiB of the whole allotment.
        guest_memory: MiB of it that the guest sees.
    """

    image: str
    sha256: str
    manifest: "Manifest"
    tender: "Tender"
    memory: int
    guest_memory: int


class StartCallbacks(Protocol):
    """Who is told how far a start has come; each call returns at once."""

    def on_step(self, doing: str) -> None:
        """The next step, such as `reserving addresses`."""

    def on_preflight(self, preflight: Preflight) -> None:
        """All is well so far, and nothing exists yet; an error raised here ends the start as one of its own."""

    def on_leases(self, leases: Sequence[Lease]) -> None:
        """The task has these addresses."""


class NoCallbacks:
    """Nobody is told."""

    def on_step(self, doing: str) -> None: ...

    def on_preflight(self, preflight: Preflight) -> None: ...

    def on_leases(self, leases: Sequence[Lease]) -> None: ...


def phase(state: UnitState, *, hung: bool) -> Phase:
    """The phase of a unit; `stalled`: its tender is a zombie leader with live threads."""
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
