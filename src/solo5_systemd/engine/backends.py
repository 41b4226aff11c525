"""The backends of the engine, as Protocols.

`wiring` has the implementations, tests/support/fakes those of the tests. Every method raises only errors of
`solo5_systemd.errors`.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Protocol

from solo5_systemd.cgroup.usage import Usage
from solo5_systemd.engine.task import Endpoints
from solo5_systemd.image.manifest import StoredImage, Target
from solo5_systemd.journal.lines import DroppedLines, Line
from solo5_systemd.names import DeviceName, NetworkName, TaskName
from solo5_systemd.network.model import (
    UNNAMED,
    GuestNames,
    IpAddress,
    LeaseRecord,
    NetworkOverview,
    NicRequest,
    PortRequest,
    Preview,
    RecordedRepair,
    Repair,
    Reservation,
)
from solo5_systemd.network.tap_counters import Traffic
from solo5_systemd.settings.limits import Claim
from solo5_systemd.settings.resolver import Resolver
from solo5_systemd.storage.model import (
    BoundDisks,
    Disk,
    DiskRequest,
    FullDisk,
    FullDiskChange,
    LostDisk,
    MadeDisk,
)
from solo5_systemd.unit.exit_messages import ExitMessages
from solo5_systemd.unit.properties import Property, TransientUnit, UnitFiles
from solo5_systemd.unit.state import ActiveState, Invocation, UnitState
from solo5_systemd.unit.tender import Tender
from solo5_systemd.users.user_record import AllocatedUser, GivenDisk


class Images(Protocol):
    """The image store."""

    async def take(
        self, path: str, roots: Sequence[str], largest: int | None, admit: Callable[[int], None]
    ) -> StoredImage:
        """Copy an image into the store unless it is there, and parse its notes from the stored copy.

        Args:
            path: of the image.
            roots: directories below one of which it must be; empty: it may be anywhere.
            largest: most bytes that it may have; None: no limit.
            admit: called with the bytes of an image that the store lacks, before it is copied; it may raise.
        """

    async def preview(
        self, path: str, roots: Sequence[str], largest: int | None, *, removable: Collection[str] = ()
    ) -> StoredImage:
        """Return what `take` would return if the images in `removable` were removed before; write nothing."""

    async def open(self, image: StoredImage) -> int:
        """Open a stored image with O_PATH."""

    async def hold(self, image: StoredImage) -> int:
        """Keep a stored image until the returned descriptor is closed."""

    async def collect(self, keep: frozenset[str], *, dry_run: bool, min_age: float = 60.0) -> Sequence[str]:
        """Remove images whose SHA-256 is not in `keep`, unused for `min_age` seconds; return their SHA-256."""


class Tenders(Protocol):
    """The tender programs and what they need of the host."""

    async def find(self, target: Target, abi_version: int) -> Tender:
        """Return the first tender in the search path that supports the ABI."""

    async def security_modules(self) -> Collection[str]:
        """Return the enabled ones of `apparmor` and `selinux`."""

    async def groups(self, target: Target, *, nics: bool) -> Sequence[str]:
        """Return the supplementary groups that a tender needs to open its device nodes.

        Raises:
            HostError: a device node is missing, or cannot be opened by way of a group.
        """


class Disks(Protocol):
    """The files and block devices behind disks."""

    async def inspect(self, request: DiskRequest) -> Disk:
        """Check the file and its sector size, and return the disk."""

    async def make(self, request: DiskRequest, planned: Disk) -> MadeDisk:
        """Create the file of a disk unless there is one, or make a private disk, as large as it was planned."""

    async def release(self, made: MadeDisk) -> None:
        """Remove what a private disk needs during the start only; the task keeps its disk."""

    async def unmake(self, request: DiskRequest, disk: Disk) -> None:
        """Remove a file that `make` has created, unless another task has it by now."""

    async def lock(self, disks: Sequence[Disk], task: str = "") -> int:
        """Lock every disk exclusively for a task, and return the one descriptor that has the locks until its close."""

    async def remove_stale_locks(self) -> None:
        """Remove the lock files of tasks that have ended."""

    async def change_owner(self, disk: Disk, user: int) -> int:
        """Make `user` the owner of the inspected file or device, which the caller has locked; return the former owner.

        If that was the user of a task, the change is on stable storage.
        """

    async def bind(self, disks: Sequence[Disk]) -> BoundDisks:
        """Bind-mount the inspected files to paths that only root can change, until `unbind`."""

    async def unbind(self, bound: BoundDisks) -> None:
        """Remove the paths of `bind`; mounts that systemd has made from them stay."""

    async def check_bound(self, disks: Sequence[tuple[Disk, str]], pid: int) -> None:
        """Check that each disk is at its path in the mount namespace of `pid`, unless that is 0 or has ended."""

    async def sweep(self, *, dry_run: bool = False) -> Sequence[str]:
        """Remove bind mounts that killed processes have left; return their paths."""

    async def open(self, disk: Disk) -> int:
        """Open the inspected file or device with O_PATH."""


class Users(Protocol):
    """The registry of task users."""

    async def acquire(self, task: TaskName) -> AllocatedUser:
        """Allocate a user for a task, or adopt the one of an earlier start of this task.

        Raises:
            TakenError: another start of the task is in progress, or (RangeUsedUpError) every user is allocated.
            HostError: NSS of this host does not resolve the user.
        """

    def next_uid(self) -> int:
        """Return the UID that `acquire` would return now."""

    async def claim(self, task: TaskName, claim: Claim) -> None:
        """Check what a task with a user takes beside all others, and record it until the user is freed.

        Raises:
            InvalidRequestError, TakenError, HostError: a limit would be exceeded.
        """

    def check_claim(self, task: TaskName, claim: Claim) -> None:
        """Check the same, and record nothing."""

    async def end_claim(self, task: TaskName) -> None:
        """Remove the claim of an ended task that keeps its user."""

    async def record_disks(self, uid: int, disks: Sequence[GivenDisk]) -> None:
        """Record the disks that the user is about to own, so that they are reclaimed before it is freed."""

    async def disk_taken(self, uid: int, disk: GivenDisk) -> None:
        """Record that a disk of this user belongs to another one, on stable storage. It raises nothing."""

    async def release(self, task: TaskName, held: int | None = None) -> None:
        """Free the user of a task that is not running. Idempotent; without effect while a start holds the user.

        `held` is the descriptor of the caller's own start, which is closed.
        """

    def removal(self, task: TaskName) -> AbstractAsyncContextManager[None]:
        """Return a block in which no start acquires the task's user; it is freed at the end, unless that raises.

        Raises:
            TakenError: a start has just succeeded, or holds the user for too long.
        """

    async def tasks(self) -> Collection[TaskName]:
        """Return the tasks that have a user and no start in progress; without root, possibly not all."""

    async def collect(
        self,
        loaded: Callable[[], Awaitable[Collection[TaskName]]],
        before: Callable[[TaskName], Awaitable[None]],
    ) -> Sequence[TaskName]:
        """Free the users of tasks that `loaded` does not return, and return these tasks.

        `before` is called for each of them first, under the lock that keeps starts from acquiring the user.
        """

    async def reclaim(self) -> Sequence[str]:
        """Reclaim disks from users without a task; return one sentence for each disk that could not be reclaimed."""


class NetworkQueries(Protocol):
    """The networks of solo5-networkd, its state on disk, and the kernel's counters."""

    async def reservation(self, task: TaskName) -> Reservation | None:
        """Return the reservation of a task from its lease record, without a D-Bus call; None without one."""

    async def reservations(self) -> Sequence[Reservation]:
        """Return all reservations from their lease records, without a D-Bus call."""

    async def endpoints(self) -> Mapping[TaskName, Endpoints]:
        """Return the addresses and ports of all lease records, without a D-Bus call; faster than `reservations`."""

    async def networks(self) -> Sequence[NetworkOverview]:
        """Return all networks, configured or in use."""

    async def recent_repairs(self) -> Sequence[RecordedRepair]:
        """Return the last repairs, newest first, without a D-Bus call."""

    async def traffic(self) -> Mapping[TaskName, Mapping[DeviceName, Traffic]]:
        """Return the kernel's counters of every tap by task and NIC, without a D-Bus call."""


class Networks(NetworkQueries, Protocol):
    """solo5-networkd, and its state on disk."""

    async def reserve(
        self,
        task: TaskName,
        nics: Sequence[NicRequest],
        ports: Sequence[PortRequest],
        names: GuestNames = UNNAMED,
        namespace: str = "",
    ) -> Reservation:
        """Reserve addresses, MACs, taps and ports for a task.

        Args:
            task: that has the NICs.
            nics: of the task.
            ports: of the task.
            names: what its guest gets by DHCP besides.
            namespace: path of the network namespace; empty: the host's own.
        """

    async def preview(
        self, task: TaskName, nics: Sequence[NicRequest], ports: Sequence[PortRequest], namespace: str = ""
    ) -> Preview:
        """Return what `reserve` would return now, and the firewall elements of `attach`."""

    async def attach(self, task: TaskName) -> None:
        """Make the task's own network namespace, then taps and firewall elements of its reservation.

        The reservation expires if the task's unit does not start.
        """

    async def move_ports(self, source: TaskName, target: TaskName) -> None:
        """Have the published ports of one task lead to another's guest; flows stay where they lead. Idempotent."""

    async def lender(self, task: TaskName) -> str:
        """Return the task whose published ports a task has; empty: none."""

    async def connections(self, addresses: Sequence[IpAddress]) -> int:
        """Return the number of open TCP connections and of lasting UDP flows to guests, for root only."""

    async def release(self, task: TaskName) -> None:
        """Release the leases and ports of a task. Idempotent."""

    def start_mark(self, task: TaskName) -> AbstractContextManager[None]:
        """Mark a start whose caller has attached the network, so that PID 1 executes nothing for that purpose."""

    async def forget(self, task: TaskName) -> None:
        """Remove what a later start of the task by systemd would attach. Idempotent."""

    async def expired(self) -> Sequence[LeaseRecord]:
        """Return the lease records that are older than a start may take, without a D-Bus call."""

    async def orphans(self) -> Sequence[str]:
        """Return a line for each tap and firewall element without a lease; firewall elements for root only."""

    async def collect(self, *, dry_run: bool) -> Sequence[str]:
        """Remove expired leases, and taps and firewall elements without a lease; return a line for each."""

    def repairs(self) -> AsyncGenerator[Repair, None]:
        """Yield each repair from now on. Does not activate the service, and never ends."""


class WatchedUnit(Protocol):
    """A unit during a subscription."""

    @property
    def state(self) -> UnitState | None:
        """The state as it was last read; None: the unit is not loaded."""

    async def changed(self, timeout_s: float | None = None) -> None:
        """Wait until the run may be over, and read the state; return after `timeout_s` anyway."""


class UnitQueries(Protocol):
    """The states of tasks' units in PID 1."""

    async def is_shutting_down(self) -> bool:
        """Return whether the host is shutting down (SystemState is `stopping`)."""

    async def state(self, task: TaskName) -> UnitState | None:
        """Return the state of a task's service or scope; None if neither is loaded."""

    async def states(self, *, ended: bool = True) -> Sequence[UnitState]:
        """Return the states of all tasks' units; without `ended`, of those that are not over."""

    async def was_refused(self, unit: str) -> bool:
        """Return whether the last start of a service failed before its main process: its outcome is of the run before.

        Such as by an assertion, where what it needs was not prepared.
        """

    async def names(self, *, ended: bool = True) -> Sequence[TaskName]:
        """Return the names of all tasks with a loaded unit; without `ended`, of those that are not over."""


class Units(UnitQueries, Protocol):
    """PID 1, for the units of tasks."""

    async def start(self, unit: TransientUnit, files: UnitFiles) -> Invocation:
        """Call StartTransientUnit, wait for the job, and return the new run.

        Raises:
            TakenError: a unit of this name is loaded.
            JobFailedError: the job's result is not `done`.
        """

    async def stop(self, unit: str) -> None:
        """Stop a unit and wait for the job. Without effect if the unit is not loaded."""

    async def kill(self, unit: str, number: int, *, everyone: bool) -> None:
        """Send a signal to the main process, or to every process of the unit's cgroup."""

    async def reset_failed(self, units: Sequence[str]) -> None:
        """Reset the failed state of units, so that systemd can unload them."""

    async def ensure_started(self, unit: str) -> None:
        """Start an installed unit unless it is active, and wait for the job.

        Raises:
            HostError: it did not start.
        """

    async def begin(self, unit: str) -> None:
        """Start an installed unit, without waiting for the job.

        Raises:
            HostError: the job cannot be enqueued.
        """

    async def restart(self, unit: str, *, running: bool = False) -> None:
        """Stop and start a unit, and wait for the job.

        Args:
            unit: its name.
            running: leave it alone if it is inactive or failed when PID 1 handles the call.

        Raises:
            JobCanceledError: another job took the place of this one: a stop.
            JobConflictError: it would cancel another one, of the unit or of one that it needs.
            HostError: it did not start.
        """

    async def dependents(self, unit: str) -> Sequence[str]:
        """Return the active units of others that PID 1 stops and starts with a unit, such as by Requires=.

        Raises:
            HostError: PID 1 does not reply.
        """

    async def reload_time_left(self, unit: str) -> float | None:
        """Return in how many seconds PID 1 ends the reload of a service; None: never, or it is not being reloaded."""

    async def reload(self) -> None:
        """Have PID 1 read all unit files again (`systemctl daemon-reload`).

        Raises:
            HostError: it failed.
        """

    async def set_properties(self, slice_unit: str, properties: Sequence[Property]) -> None:
        """Start a slice unless it is active, and set runtime properties of it (until the next boot)."""

    async def freeze(self, unit: str) -> None:
        """Freeze the unit's cgroup."""

    async def thaw(self, unit: str) -> None:
        """Thaw the unit's cgroup."""

    async def version(self) -> str:
        """Return systemd's version, such as `257.7-1`."""

    async def release(self) -> int:
        """Return systemd's release, such as 257."""

    async def is_taken(self, task: TaskName) -> bool:
        """Return whether the task has a loaded unit, with one D-Bus call."""

    async def is_running(self, task: TaskName) -> bool:
        """Return whether the task has a unit that is not over, with one D-Bus call."""

    async def outcome_targets(self) -> frozenset[TaskName]:
        """Return the tasks with an active outcome target."""

    async def running_states(self) -> Sequence[UnitState]:
        """Return the states of units that are not over, without `started`, with as few D-Bus calls as possible."""

    def watched(self, state: UnitState) -> AbstractAsyncContextManager[WatchedUnit]:
        """Watch a run for a block, without a D-Bus call before its end.

        An outage of PID 1 or the bus is not an end; after it the state is read again.

        Args:
            state: the run, as it was last read.

        Raises:
            HostError: the run may be over already, and could not be read.
        """

    async def current(self, state: UnitState) -> UnitState | None:
        """Return the state of a run now, or of its task's unit if it is over; None without a unit.

        There is no D-Bus call while the run goes on.
        """

    async def active_state(self, unit: str) -> ActiveState:
        """Return ActiveState= of a unit, with one D-Bus call."""


class ConsoleQueries(Protocol):
    """The journal of tasks that are over, and lines that are in it."""

    def lines(self, state: UnitState, *, last: int | None = None) -> AsyncGenerator[Line, None]:
        """Yield the console lines of one invocation that are in the journal; with `last`, begin with the last N."""

    async def exit_messages(self, state: UnitState) -> ExitMessages:
        """Return the last messages of a run; empty if the caller may not read the journal."""

    async def sync(self, task: TaskName, namespace: str) -> None:
        """Wait until journald has written all lines that the task has sent."""


class Console(ConsoleQueries, Protocol):
    """The journal, for the consoles of tasks. A namespace is a journal namespace; empty: the host's journal."""

    def namespace(self) -> str:
        """Return the journal namespace for the consoles of new tasks."""

    async def open_stdout(self, unit: str, namespace: str) -> int:
        """Open a journal stream for the console of a process that PID 1 does not start."""

    async def open_stderr(self, unit: str, namespace: str) -> int:
        """Open a journal stream for the tender's stderr, separate from the console."""

    def lines(
        self, state: UnitState, *, until: Callable[[], bool] | None = None, last: int | None = None
    ) -> AsyncGenerator[Line, None]:
        """Yield the console lines of one invocation.

        Args:
            state: of the unit.
            until: wait for new lines until this is true, then yield those that are left. None: do not wait.
            last: begin with the last N lines.
        """

    async def failure_messages(self, unit: str, namespace: str) -> Sequence[str]:
        """Return what the unit's processes and PID 1 logged about a failed start, newest last."""

    async def log_hung(self, state: UnitState) -> None:
        """Log that the tender is killed because it hangs, which `exit_messages` reads back."""


class Relay(Protocol):
    """solo5-relay, and its records on disk."""

    async def forward(
        self, task: TaskName, unit: str, since: int, stdout: int, stderr: int, *, namespace: str = ""
    ) -> None:
        """Forward a unit's console to two FIFOs. Idempotent; called before the unit starts, or after a recovery.

        Args:
            task: the key for `drain`.
            unit: source of the lines.
            since: microseconds since the epoch; earlier lines are skipped. A task with a record continues after the
                last delivered line.
            stdout: write end for the guest's console; the caller closes its own copies.
            stderr: write end for the tender's stderr.
            namespace: journal namespace of the lines; empty: the host's journal.
        """

    async def has_record(self, task: TaskName) -> bool:
        """Return whether the relay has a record of the task: lines to deliver, or no `drain` yet."""

    async def records(self) -> Mapping[TaskName, float]:
        """Return the tasks with a record, each with the seconds since its last delivery."""

    async def open_tasks(self) -> frozenset[TaskName]:
        """Return the tasks whose FIFOs the relay has open; without any record, without a D-Bus call."""

    async def drain(self, task: TaskName) -> int | None:
        """Deliver the last lines of an ended task, and close its FIFOs. Idempotent.

        Returns:
            None if all are delivered. Otherwise, after a second or so, a number that changes with each delivery: the
            relay delivers the rest when the FIFO is read.
        """

    def gaps(self) -> AsyncGenerator[DroppedLines, None]:
        """Yield the dropped lines of consoles from now on. Does not activate the relay, and never ends."""


class Meter(Protocol):
    """The usage of one cgroup, read repeatedly from open files."""

    def sample(self) -> Usage | None:
        """Return memory and CPU time; None if the cgroup has been removed.

        What has not changed since the previous sample is the same object.
        """

    def close(self) -> None:
        """Close the files."""


class FrozenTime(Protocol):
    """A measurement of how long a cgroup was frozen; `seconds` is None where that is not known."""

    @property
    def seconds(self) -> float | None:
        """Return the seconds, once the block is over."""


class Usages(Protocol):
    """The cgroup hierarchy and /proc."""

    def frozen_time(self, control_group: str) -> AbstractContextManager[FrozenTime]:
        """Measure for how long a cgroup is frozen while a block runs."""

    def meter(self, control_group: str) -> Meter:
        """Return a meter of a cgroup; of an empty path it returns no samples."""

    async def usages(self) -> Mapping[TaskName, Usage]:
        """Return the usage of each running task."""

    async def cpus(self, directory: str) -> str | None:
        """Return the processors of another program's cpuset, such as `0-2,5`; None if it lists none."""

    async def controllers(self) -> Collection[str]:
        """Return the controllers of the unified hierarchy; empty on a legacy or hybrid one."""

    async def total_memory(self) -> int:
        """Return the host's memory in bytes."""

    async def stalled(self, pid: int) -> bool:
        """Return whether the process is a zombie leader: its main thread is dead, and other threads live."""


class Resolvers(Protocol):
    """The name servers of networks and of the host."""

    async def of(self, networks: Sequence[NetworkName]) -> Resolver:
        """Return the name servers and search domains for a guest of these networks, from the first that sets them.

        What none of them sets is the host's, as far as guests can use it.
        """

    def versions(self, networks: Sequence[NetworkName]) -> frozenset[int]:
        """Return the versions of IP, 4 and 6, that guests of these networks can have."""

    def by_dhcp(self, networks: Sequence[NetworkName]) -> bool:
        """Return whether one of these networks has a DHCP server."""


class Directories(Protocol):
    """Directories of other programs, such as Nomad's allocation directories."""

    async def removed(self, directories: Iterable[str]) -> frozenset[str]:
        """Return those that do not exist, while their parent directory does."""


class DiskSpace(Protocol):
    """The file systems of disks."""

    async def full_disks(self, task: TaskName) -> Sequence[FullDisk]:
        """Return the disks of a task's last run whose file system is full; none where that is not known."""

    async def lost_disks(self, task: TaskName) -> Sequence[LostDisk]:
        """Return the disks of a task's last run whose block device is gone; none where that is not known."""

    async def changes(self) -> Sequence[FullDiskChange]:
        """Return the disks of running tasks whose file system has become full, or has space again, since the last call.

        Raises:
            HostError: a file system does not answer.
        """


class QueryBackends(Protocol):
    """The backends of reads; each may be created at its first use."""

    @property
    def networks(self) -> NetworkQueries:
        """The network service."""

    @property
    def units(self) -> UnitQueries:
        """PID 1."""

    @property
    def console(self) -> ConsoleQueries:
        """The journal."""

    @property
    def usages(self) -> Usages:
        """The cgroup hierarchy."""

    @property
    def disk_space(self) -> DiskSpace:
        """The file systems of disks."""


class Backends(Protocol):
    """All backends; each may be created at its first use."""

    @property
    def images(self) -> Images:
        """The image store."""

    @property
    def tenders(self) -> Tenders:
        """The tender programs."""

    @property
    def disks(self) -> Disks:
        """The disks."""

    @property
    def users(self) -> Users:
        """The task users."""

    @property
    def networks(self) -> Networks:
        """The network service."""

    @property
    def units(self) -> Units:
        """PID 1."""

    @property
    def console(self) -> Console:
        """The journal."""

    @property
    def relay(self) -> Relay:
        """The relay."""

    @property
    def usages(self) -> Usages:
        """The cgroup hierarchy."""

    @property
    def disk_space(self) -> DiskSpace:
        """The file systems of disks."""

    @property
    def resolvers(self) -> Resolvers:
        """The name servers."""

    @property
    def directories(self) -> Directories:
        """Directories of other programs."""
