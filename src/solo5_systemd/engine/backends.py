"""What the engine needs from the machine: one page of Protocols.

`runtime` knows these and nothing behind them; `wiring` picks who fulfils them; tests fulfil them in memory.
Every method raises only errors of `solo5_systemd.errors`.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from solo5_systemd.block.model import BoundDisks, Disk, DiskRequest
from solo5_systemd.cgroup.usage import Usage
from solo5_systemd.image.manifest import StoredImage, Target
from solo5_systemd.journal.export import Entry
from solo5_systemd.journal.lines import DroppedLines
from solo5_systemd.names import DeviceName, TaskName
from solo5_systemd.network.model import (
    LeaseRecord,
    NetworkOverview,
    NicRequest,
    PortRequest,
    Preview,
    Repair,
    Reservation,
)
from solo5_systemd.network.tap_counters import Traffic
from solo5_systemd.unit.exit_messages import ExitMessages
from solo5_systemd.unit.properties import Property, TransientUnit, UnitFiles
from solo5_systemd.unit.state import Invocation, UnitState
from solo5_systemd.unit.tender import Tender
from solo5_systemd.users.record import GivenDisk, HeldUser


class Images(Protocol):
    async def take(self, path: str, roots: Sequence[str], largest: int | None) -> StoredImage:
        """Bring the image into the store, or find it there, and read its notes from the stored copy.

        An error where there are roots and it lies below none, and where it has more bytes than the largest may have.
        """

    async def open(self, image: StoredImage) -> int:
        """Open the stored image, as a place to open it anew."""

    async def collect(self, keep: frozenset[str], *, dry_run: bool, min_age: float = 60.0) -> Sequence[str]:
        """Remove stored images whose SHA-256 is not in `keep`, unused for `min_age` seconds; the removed ones."""


class Tenders(Protocol):
    async def find(self, target: Target, abi_version: int) -> Tender:
        """The first tender in the search path, its ABI checked."""

    async def security_modules(self) -> Collection[str]:
        """Return those of `apparmor` and `selinux` that are enabled, so that systemd applies a task's profile."""

    async def groups(self, target: Target, *, nics: bool) -> Sequence[str]:
        """The groups that a tender needs to open its device nodes; an error where a node is missing or closed."""


class Disks(Protocol):
    async def inspect(self, request: DiskRequest) -> Disk:
        """Check file and sector rules."""

    async def lock(self, disks: Sequence[Disk]) -> int:
        """One descriptor that holds an exclusive lock on every disk until its last holder is gone."""

    async def remove_stale_locks(self) -> None:
        """Forget the locks of tasks that have ended."""

    async def change_owner(self, disk: Disk, user: int) -> None:
        """Make a user the owner of the very file or device that was inspected; called while it is locked."""

    async def bind(self, disks: Sequence[Disk]) -> BoundDisks:
        """Return the very files that were inspected by paths that only root may change, until `unbind`."""

    async def unbind(self, bound: BoundDisks) -> None:
        """Take these paths away; what systemd has bound from there stays."""

    async def check_bound(self, disks: Sequence[tuple[Disk, str]], pid: int) -> None:
        """Check that a process sees each disk at its path there; one that has ended, or has number 0, sees nothing."""

    async def sweep(self, *, dry_run: bool = False) -> Sequence[str]:
        """Remove what `bind` has made in processes that were killed; a path for each."""

    async def open(self, disk: Disk) -> int:
        """Open the very file or device that was inspected, as a place to open it anew and not to read or write."""


class Users(Protocol):
    async def acquire(self, task: TaskName) -> HeldUser:
        """Allocate a user for a task, or take the one that an earlier start of it has left.

        Raises:
            TakenError: another start of the task is under way, or (RangeUsedUpError) every user is allocated.
            HostError: this host would not find the user.
        """

    def next_uid(self) -> int:
        """Return the user that a start would be given now."""

    async def record_disks(self, uid: int, disks: Sequence[GivenDisk]) -> None:
        """Note which disks the user is about to be given: they are taken back before it is freed."""

    async def release(self, task: TaskName) -> None:
        """Free the user of a task that does not run; nothing happens without one, or while a start holds it."""

    async def tasks(self) -> Collection[TaskName]:
        """Return the tasks that have a user which no start holds, as far as the caller may see it."""

    async def collect(self, loaded: Callable[[], Awaitable[Collection[TaskName]]]) -> Sequence[TaskName]:
        """Free the users of the tasks that `loaded`, called while no start can take them, does not return."""

    async def reclaim(self) -> Sequence[str]:
        """Take disks back from users that no task has; a sentence for each that such a user still has."""


class Networks(Protocol):
    async def reserve(
        self, task: TaskName, nics: Sequence[NicRequest], ports: Sequence[PortRequest]
    ) -> Reservation: ...

    async def preview(self, task: TaskName, nics: Sequence[NicRequest], ports: Sequence[PortRequest]) -> Preview: ...

    async def attach(self, task: TaskName) -> None:
        """Make what the task has reserved; its unit must come within the reservation's time, or it is taken back."""

    async def release(self, task: TaskName) -> None:
        """Give back what the task holds; nothing happens where it holds nothing."""

    async def reservation(self, task: TaskName) -> Reservation | None:
        """What the task holds, read from its lease on disk: no service is woken for it."""

    async def reservations(self) -> Sequence[Reservation]:
        """All that is held, read in the same way."""

    async def networks(self) -> Sequence[NetworkOverview]:
        """All networks, configured or in use."""

    async def traffic(self) -> Mapping[TaskName, Mapping[DeviceName, Traffic]]:
        """What went over every NIC, by task and NIC, as the kernel counts it: no service is woken for it."""

    async def expired(self) -> Sequence[LeaseRecord]:
        """Leases and reservations that are older than a start may take, read in the same way."""

    async def orphans(self) -> Sequence[str]:
        """What the kernel has of ours and no lease speaks of, as far as the caller may see it; a line for each."""

    async def collect(self, *, dry_run: bool) -> Sequence[str]:
        """Remove what belongs to no task; one line for each."""

    def repairs(self) -> AsyncGenerator[Repair, None]:
        """What has to be put back from now on, for ever; no service is woken for it."""


class Units(Protocol):
    async def start(self, unit: TransientUnit, files: UnitFiles) -> Invocation:
        """One StartTransientUnit call, then its job's end, and what has begun by it.

        Raises:
            TakenError: a unit of this name is loaded.
            JobFailedError: the job ended otherwise than done.
        """

    async def stop(self, unit: str) -> None:
        """Stop the unit and wait for its job; nothing happens for an unknown unit."""

    async def kill(self, unit: str, number: int, *, everyone: bool) -> None:
        """Send a signal to the main process, or to all of the unit's cgroup."""

    async def reset_failed(self, units: Sequence[str]) -> None:
        """Reset what is failed, so that systemd may unload it."""

    async def ensure_started(self, unit: str) -> None:
        """Start a unit that is installed, where it is not active, and wait for its job.

        Raises:
            HostError: it did not start.
        """

    async def set_properties(self, slice_unit: str, properties: Sequence[Property]) -> None:
        """Start a slice where it is not active, and set properties of it until the next boot."""

    async def freeze(self, unit: str) -> None: ...

    async def thaw(self, unit: str) -> None: ...

    async def version(self) -> str:
        """What PID 1 says of itself."""

    async def release(self) -> int:
        """Return the number of systemd's release, such as 257."""

    async def is_shutting_down(self) -> bool:
        """The host is being shut down."""

    async def is_running(self, task: TaskName) -> bool:
        """The task has a unit that is not over; in one question, however much there is to tell of it."""

    async def state(self, task: TaskName) -> UnitState | None:
        """The task's service or scope; None where neither is loaded."""

    async def states(self, *, ended: bool = True) -> Sequence[UnitState]:
        """All tasks in one listing, or those that live."""

    async def names(self, *, ended: bool = True) -> Sequence[TaskName]:
        """The names alone."""

    async def companion_units(self) -> tuple[frozenset[TaskName], frozenset[TaskName]]:
        """The tasks whose network's unit stands, and those whose outcome is kept."""

    async def running_states(self) -> Sequence[UnitState]:
        """Those that live, at the least cost: without the time of their start."""

    def changes(self, state: UnitState, *, seen: bool = False) -> AsyncGenerator[UnitState, None]:
        """The state now, and again after every change, until the unit is unloaded.

        Where `state` has just been `seen` it is the first, and PID 1 is asked nothing before a change, or a listing.

        Of a unit that lives only active state, sub-state and invocation are new; the rest is as in `state`. An outage
        of PID 1 or the bus is no change. Every few seconds the last state is given again, read or not: for those who
        look at what PID 1 does not.
        """


class Console(Protocol):
    """Consoles, each in the journal namespace of its task; empty: in the host's journal."""

    def namespace(self) -> str:
        """Return the journal namespace of the consoles of new tasks."""

    async def open_stdout(self, unit: str, namespace: str) -> int:
        """The same for the guest's console, of a process that PID 1 does not start."""

    async def open_stderr(self, unit: str, namespace: str) -> int:
        """A journal stream for the tender's stderr, apart from the guest's console."""

    def entries(
        self, state: UnitState, *, follow: bool, last: int | None = None, after: str | None = None
    ) -> AsyncGenerator[Entry, None]:
        """Journal entries of one invocation, from a cursor or the last N, following where asked."""

    async def failure_messages(self, unit: str, namespace: str) -> Sequence[str]:
        """What the unit's own processes and PID 1 said of a failed start, newest last."""

    async def exit_messages(self, state: UnitState) -> ExitMessages:
        """The end of what was said in this run; nothing where the journal is not the caller's to read."""

    async def log_hung(self, state: UnitState) -> None:
        """Write down that the task's tender is killed because it hangs: `exit_messages` reports it."""

    async def sync(self, task: TaskName, namespace: str) -> None:
        """Wait until the journal has written all that was sent of a task before."""


class Relay(Protocol):
    async def forward(
        self, task: TaskName, unit: str, since: int, stdout: int, stderr: int, *, namespace: str = ""
    ) -> None:
        """Have a unit's console written to two FIFOs; called before the unit starts, or again at any time.

        Args:
            task: what `drain` will name.
            unit: whose lines.
            since: lines of this time (microseconds since the epoch) or later; of a task that is known already, those
                after the last one delivered.
            stdout: a write end for the guest's console; the caller closes its own copies.
            stderr: another for the tender's words.
            namespace: of the journal that has the lines; empty: the host's.
        """

    async def has_record(self, task: TaskName) -> bool:
        """It was asked to forward the task's console, and has not been told of the end, or not delivered it all."""

    async def records(self) -> Mapping[TaskName, float]:
        """All those, and for how many seconds nothing has happened to each."""

    async def open_tasks(self) -> frozenset[TaskName]:
        """The tasks whose FIFOs it holds open; where it owes nobody anything, it is not started to be asked."""

    async def drain(self, task: TaskName) -> int | None:
        """Deliver the last lines of a task that has ended, and close its FIFOs; nothing happens for an unknown one.

        Returns:
            None when they are delivered. Otherwise, after a second or so, a number that changes with every delivery: a
            full FIFO gets the rest later, when it is read.
        """

    def gaps(self) -> AsyncGenerator[DroppedLines, None]:
        """What journald leaves out of tasks' consoles from now on, for ever; no relay is started for it."""


class Meter(Protocol):
    """Of one cgroup; to be closed."""

    def sample(self) -> Usage | None:
        """Memory and processor time, at the least cost; None where the cgroup is gone."""

    def close(self) -> None: ...


class Usages(Protocol):
    def meter(self, control_group: str) -> Meter:
        """To sample a cgroup again and again; the empty one has never anything."""

    async def usages(self) -> Mapping[TaskName, Usage]:
        """All that is known of each task that runs."""

    async def cpus(self, directory: str) -> str | None:
        """The processors of a cpuset that somebody else keeps, such as `0-2,5`; None where it names none."""

    async def controllers(self) -> Collection[str]:
        """Return the controllers of the unified hierarchy; none on a legacy or hybrid one."""

    async def total_memory(self) -> int:
        """Bytes of memory that the host has."""

    async def stalled(self, pid: int) -> bool:
        """The process is a zombie leader: dead to everyone, with threads still alive."""


class Directories(Protocol):
    async def removed(self, directories: Iterable[str]) -> frozenset[str]:
        """Those that are no more, in a directory that is still there."""


class Backends(Protocol):
    """All of them; each may come into being when it is first asked for."""

    @property
    def images(self) -> Images: ...

    @property
    def tenders(self) -> Tenders: ...

    @property
    def disks(self) -> Disks: ...

    @property
    def users(self) -> Users: ...

    @property
    def networks(self) -> Networks: ...

    @property
    def units(self) -> Units: ...

    @property
    def console(self) -> Console: ...

    @property
    def relay(self) -> Relay: ...

    @property
    def usages(self) -> Usages: ...

    @property
    def directories(self) -> Directories: ...
