"""In-memory implementations of all `backends`."""

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from ipaddress import IPv4Interface
from typing import cast

from tests.support.fakes.images import disk, stored
from tests.support.fakes.pid1 import FakeUnits
from tests.support.fakes.relay import FakeRelay
from tests.support.fakes.steps import Steps, step
from tests.support.fakes.tasks import LEASE, STARTED, endpoints

from solo5_systemd.base.errors import NotFoundError, TakenError
from solo5_systemd.base.names import DeviceName, NetworkName, Target, TaskName
from solo5_systemd.bus.network_client import Networkd
from solo5_systemd.cgroup.cgroupfs import CgroupFs
from solo5_systemd.cgroup.meter import Meter
from solo5_systemd.cgroup.usage import Usage
from solo5_systemd.engine.backends import Backends
from solo5_systemd.host.resolvers import HostResolvers
from solo5_systemd.host.tenders import TenderPath
from solo5_systemd.image.manifest import StoredImage
from solo5_systemd.image.store import ImageStore
from solo5_systemd.journal.console import Journal
from solo5_systemd.journal.lines import JournalPosition, Line, Stream
from solo5_systemd.network.endpoints import Endpoints, Problem, problems_of
from solo5_systemd.network.model import GuestNames, LeaseRecord, LeaseState, Request, Reservation
from solo5_systemd.network.overview import NetworkOverview, Repair
from solo5_systemd.network.tap_counters import Traffic  # noqa: TC001
from solo5_systemd.settings.node_limits import Claim, Node, Tenant, Totals
from solo5_systemd.settings.records import document
from solo5_systemd.settings.resolver import UNSET, Resolver
from solo5_systemd.storage.backing_files import ImageFiles
from solo5_systemd.storage.disk_space import DiskSpace
from solo5_systemd.storage.model import Backing, Disk, DiskRequest, FailedDisk, GivenDisk
from solo5_systemd.task.log_fields import STDOUT_PRIORITY
from solo5_systemd.unit.failure_messages import ExitMessages
from solo5_systemd.unit.state import UnitState
from solo5_systemd.unit.tender import Tender
from solo5_systemd.users.allocation import AllocatedUser, RangeUsedUpError, Users


def null() -> int:
    """Return a descriptor, a real one, so that a leak is detected."""
    return os.open("/dev/null", os.O_RDONLY)


class FakeImages(ImageStore):
    """An image store."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self.files: dict[str, StoredImage] = {  # images by path
            "/srv/app": stored(nics="service"),
            "/srv/full": stored(nics="service", disks="storage"),
            "/srv/plain": stored(Target.SPT),
        }
        self.collected: Set[str] | None = None  # `keep` of the last `collect`
        self.opened: list[int] = []
        self.held: list[int] = []

    async def take(
        self,
        path: str,
        roots: Sequence[str] = (),
        largest: int | None = None,
        admit: Callable[[int], None] = lambda _: None,
    ) -> StoredImage:
        async with self._steps.step("take image"):
            if path not in self.files:
                raise NotFoundError(f"image {path} is not there.")
            admit(self.files[path].size)
            return self.files[path]

    async def preview(self, path: str, roots: Sequence[str] = (), largest: int | None = None) -> StoredImage:
        async with self._steps.step("preview image"):
            if path not in self.files:
                raise NotFoundError(f"image {path} is not there.")
            return self.files[path]

    async def hold(self, image: StoredImage) -> int:
        self.held.append(null())
        return self.held[-1]

    async def open(self, image: StoredImage) -> int:
        await self._steps.take("open image")
        self.opened.append(null())
        return self.opened[-1]

    async def collect(self, keep: Set[str], *, min_age: float = 60.0, dry_run: bool = False) -> tuple[str, ...]:
        async with self._steps.step("list unused images" if dry_run else "collect images"):
            self.collected = keep
            return ("ab" * 32,)


class FakeTenders(TenderPath):
    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    async def find(self, target: Target) -> Tender:
        async with self._steps.step("find tender"):
            return Tender(path=f"/usr/bin/solo5-{target}", target=target, version="0.12.1", abi_version=2)

    async def groups(self, target: Target, *, nics: bool) -> Sequence[str]:
        async with self._steps.step("find groups"):
            return ("kvm",) if target is Target.HVT else ()


class FakeDisks(ImageFiles):
    """Disks."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self.files: set[str] = set()  # created ones by path; a request with `create` has its file once it is here
        self.locks: list[int] = []  # returned file descriptors, a lock first
        self.directories: dict[str, int] = {}  # descriptors for the directories of starts, by path of the disk
        self.seen: tuple[str, ...] = ()  # paths of the last `check_bound`
        self.left: tuple[str, ...] = ()  # result of `sweep`
        self.owners: dict[str, int] = {}  # UIDs by path
        self.tenants: list[Tenant] = []  # of the inspected and made ones

    async def inspect(self, request: DiskRequest, tenant: Tenant) -> Disk:
        self.tenants.append(tenant)
        async with self._steps.step("inspect disk"):
            is_planned = request.private or (request.create is not None and request.path not in self.files)
            found = disk(request.disk, path=request.path)
            return replace(found, identity=(0, 0)) if is_planned else found

    async def make(self, request: DiskRequest, planned: Disk, tenant: Tenant) -> tuple[Disk, bool]:
        self.tenants.append(tenant)
        created = not request.private and request.path not in self.files
        made = replace(disk(request.disk, path=request.path), backing=Backing.COPY if request.private else Backing.FILE)
        async with self._steps.step("make disk"):
            if request.private:
                self.directories[request.path] = null()
            else:
                self.files.add(request.path)
            return made, created

    async def unmake(self, request: DiskRequest, disk: Disk) -> None:
        async with self._steps.step("unmake disk"):
            self.files.discard(request.path)

    def descriptors(self, disks: Iterable[Disk]) -> Sequence[int]:
        return [self.directories.pop(each.path) for each in disks if each.path in self.directories]

    async def release(self, disks: Sequence[Disk]) -> None:
        if found := self.descriptors(disks):
            for each in found:
                os.close(each)
            await self._steps.take("release disks")

    async def lock(self, disks: Sequence[Disk], task: str = "") -> int:
        await self._steps.take("lock disks")
        self.locks.append(null())
        return self.locks[-1]

    remove_stale_locks = step("remove stale locks")
    sweep = step("sweep disks", "left")

    async def change_owner(self, disk: Disk, user: int) -> int:
        async with self._steps.step("change owner"):
            former = self.owners.get(disk.path, 0)
            self.owners[disk.path] = user
            return former

    async def bind(self, disks: Sequence[Disk]) -> Sequence[Disk]:
        if disks:
            async with self._steps.step("bind disks"):
                for each in disks:
                    self.directories[each.path] = self.directories.get(each.path) or null()
        return disks

    async def check_bound(self, disks: Sequence[tuple[Disk, str]], pid: int) -> None:
        if disks:
            async with self._steps.step("check bound disks"):
                self.seen = tuple(path for _, path in disks)

    async def open(self, disk: Disk) -> int:
        await self._steps.take("open disk")
        self.locks.append(null())
        return self.locks[-1]


class Spawn:
    """The caller's part in the start of a scope (`SpawnProcess`); records its arguments."""

    pid = 4711

    def __init__(self, steps: Steps | None = None) -> None:
        self._steps = steps or Steps()
        self.argv: Sequence[str] = ()
        self.descriptors: Sequence[int] = ()
        self.log_namespace = ""

    @asynccontextmanager
    async def __call__(
        self, argv: Sequence[str], descriptors: Sequence[int], log_namespace: str
    ) -> AsyncGenerator[int, None]:
        async with self._steps.step("spawn"):
            self.argv, self.descriptors, self.log_namespace = argv, descriptors, log_namespace
        try:
            yield self.pid
        except BaseException:
            await self._steps.take("kill")
            raise


async def _nothing(_: TaskName) -> None:
    pass


class FakeUsers(Users):
    """Task users."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self.held: dict[TaskName, int] = {}  # UIDs by task
        self.most = 100  # size of the range
        self.disks: dict[int, list[GivenDisk]] = {}  # recorded disks by UID
        self.taken: list[tuple[int, GivenDisk]] = []  # disks of other users, by UID, that a start got
        self.starting: set[TaskName] = set()  # tasks with a start in progress
        self.kept: Sequence[str] = ()  # result of `reclaim`
        self.descriptors: list[int] = []  # returned file descriptors
        self.claims: dict[TaskName, Claim] = {}  # by task, checked against `node`
        self.node = Node()

    async def claim(self, task: TaskName, claim: Claim) -> None:
        self.check_claim(task, claim)
        self.claims[task] = claim

    def check_claim(self, task: TaskName, claim: Claim) -> None:
        others = (other for name, other in self.claims.items() if name != task)
        self.node.check(claim, lambda: Totals(others), f"task {task}")

    async def end_claim(self, task: TaskName) -> None:
        self.claims.pop(task, None)

    async def acquire(self, task: TaskName) -> AllocatedUser:
        async with self._steps.step("acquire user"):
            if len(self.held) == self.most:
                raise RangeUsedUpError("all users are in use.")
            adopted = task in self.held
            uid = self.held.setdefault(task, self.next_uid())
        self.descriptors.append(null())
        return AllocatedUser(uid=uid, descriptor=self.descriptors[-1], adopted=adopted)

    async def record_disks(self, uid: int, disks: Sequence[GivenDisk]) -> None:
        async with self._steps.step("record disks"):
            self.disks[uid] = list(disks)

    async def disk_taken(self, uid: int, disk: GivenDisk) -> None:
        async with self._steps.step("record taken disk"):
            self.taken.append((uid, disk))

    def next_uid(self) -> int:
        return max(self.held.values(), default=61199) + 1

    async def release(self, task: TaskName, held: int | None = None) -> None:
        try:
            async with self._steps.step("free user"):
                self.held.pop(task, None)
                self.claims.pop(task, None)
        finally:
            if held is not None:
                os.close(held)

    @asynccontextmanager
    async def removal(self, task: TaskName) -> AsyncGenerator[None, None]:
        if task in self.starting:
            raise TakenError(f"task name {task!r} is taken: another start of it is in progress.")
        self.starting.add(task)
        try:
            yield
        finally:
            self.starting.discard(task)
        await self.release(task)

    async def tasks(self) -> Collection[TaskName]:
        async with self._steps.step("users"):
            return self.held.keys() - self.starting

    async def collect(
        self,
        loaded: Callable[[], Awaitable[Collection[TaskName]]],
        before: Callable[[TaskName], Awaitable[None]] = _nothing,
    ) -> Sequence[TaskName]:
        async with self._steps.step("collect users"):
            stale = sorted(self.held.keys() - self.starting - {*await loaded()})
            for task in stale:
                await before(task)
                del self.held[task]
            return stale

    reclaim = step("reclaim disks", "kept")


class FakeNetworks(Networkd):
    """The network service."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self.held: dict[TaskName, Reservation] = {}  # reservations by task
        self.lenders: dict[TaskName, str] = {}  # the task whose ports a task has, by task
        self.asleep: dict[TaskName, int] = {}  # since when a task sleeps, by task
        self.dormant: set[TaskName] = set()  # tasks that wait without a process
        self.namespaces: dict[TaskName, str] = {}  # network namespaces by task; empty: the host's
        self.names: dict[TaskName, GuestNames] = {}  # of each task's guest
        self.forgotten: list[TaskName] = []  # tasks without a request
        self.marked: set[TaskName] = set()  # tasks whose start is marked at present
        self.repaired: asyncio.Queue[Repair] = asyncio.Queue()  # repairs to yield
        self.late: Sequence[LeaseRecord] = ()  # result of `expired`
        self.stray: Sequence[str] = ()  # result of `orphans`
        self.overview: Sequence[NetworkOverview] = ()  # result of `networks`
        self.released: list[TaskName] = []
        self.recorded: Sequence[Repair] = ()  # the last repairs
        self.counted: dict[TaskName, Mapping[DeviceName, Traffic]] = {}  # traffic by task

    async def reserve(self, task: TaskName, request: Request) -> Reservation:
        self.namespaces[task] = request.namespace
        async with self._steps.step("reserve"):
            self.names[task] = request.names
            self.held[task] = self._reservation(task, request)
        return self.held[task]

    async def preview(self, task: TaskName, request: Request) -> tuple[Reservation, str]:
        self.namespaces[task] = request.namespace
        async with self._steps.step("preview network"):
            return self._reservation(task, request), "add element …"

    def _reservation(self, task: TaskName, request: Request) -> Reservation:
        leases = (
            replace(
                LEASE,
                nic=nic.nic,
                network=nic.network,
                tap=f"tap{i}",
                ipv4=IPv4Interface(f"10.89.0.{i}/24"),
            )
            for i, nic in enumerate(request.nics, 2)
        )
        return request.reservation(task, leases)

    async def attach(self, task: TaskName) -> None:
        async with self._steps.step("attach"):
            assert task in self.held

    async def move_ports(self, source: TaskName, target: TaskName) -> None:
        async with self._steps.step("move ports"):
            if target not in self.held:
                raise NotFoundError(f"task {target} has no network: expected a running one.")
            if source in self.held and self.held[source].ports:
                self.held[target] = replace(self.held[target], ports=self.held[source].ports)
                self.held[source] = replace(self.held[source], ports=())
                self.lenders[target] = source

    async def release(self, task: TaskName) -> None:
        async with self._steps.step("release"):
            self.released.append(task)
            self.held.pop(task, None)

    @contextmanager
    def start_mark(self, task: TaskName) -> Iterator[None]:
        self.marked.add(task)
        try:
            yield
        finally:
            self.marked.remove(task)

    async def forget(self, task: TaskName) -> None:
        async with self._steps.step("forget"):
            self.forgotten.append(task)

    async def reservation(self, task: TaskName) -> Reservation | None:
        async with self._steps.step("reservation"):
            return self.held.get(task)

    async def record(self, task: TaskName) -> LeaseRecord | None:
        held = await self.reservation(task)
        return self._record(held) if held is not None else None

    async def records(self) -> Sequence[LeaseRecord]:
        async with self._steps.step("records"):
            return tuple(map(self._record, self.held.values()))

    def _record(self, held: Reservation) -> LeaseRecord:
        return LeaseRecord(
            reservation=held,
            state=LeaseState.WAITING if held.task in self.dormant else LeaseState.ATTACHED,
            expires=0,
            asleep=self.asleep.get(held.task, 0),
            lender=self.lenders.get(held.task, ""),
        )

    async def sleep(self, task: TaskName) -> None:
        async with self._steps.step("sleep"):
            self.asleep[task] = 1

    async def wake(self, task: TaskName) -> None:
        async with self._steps.step("wake"):
            self.asleep.pop(task, None)

    async def endpoints(self) -> Mapping[TaskName, Endpoints]:
        return {task: endpoints(each) for task, each in self.held.items()}

    networks = step("networks", "overview")
    recent_repairs = step("repairs", "recorded")
    traffic = step("traffic", "counted")
    expired = step("expired", "late")
    orphans = step("orphans", "stray")
    collect = step("collect networks")

    async def problems(self) -> Sequence[Problem]:
        return problems_of({"repairs": [document(each, complete=True) for each in self.recorded]})

    async def repairs(self) -> AsyncGenerator[Repair, None]:
        while True:
            yield await self.repaired.get()

    async def sleep_changes(self) -> AsyncGenerator[tuple[TaskName, bool, str], None]:
        await asyncio.Event().wait()
        yield  # type: ignore[misc]


class FakeConsole(Journal):
    """A journal."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self.written: list[Line] = []  # written lines
        self.pending: list[Line] = []  # lines that the next `sync` writes
        self.failures: dict[str, Sequence[str]] = {}  # failure messages by unit
        self.hung: set[str] = set()  # units of `log_hung`
        self.log_namespace = ""  # journal namespace of new tasks

    def namespace(self) -> str:
        return self.log_namespace

    async def open_stream(self, unit: str, priority: int, namespace: str) -> int:
        await self._steps.take(_at("open stdout" if priority == STDOUT_PRIORITY else "open stderr", namespace))
        return os.open("/dev/null", os.O_WRONLY)

    async def lines(
        self, state: UnitState, *, until: Callable[[], bool] | None = None, last: int | None = None
    ) -> AsyncGenerator[Line, None]:
        async with self._steps.step("read console"):
            position = 0 if last is None else max(0, len(self.written) - last)
        while True:
            is_last = until is None or until()
            for line in self.written[position:]:
                position += 1
                yield line
            if is_last:
                return
            await asyncio.sleep(0)

    async def failure_messages(self, unit: str, namespace: str) -> Sequence[str]:
        async with self._steps.step("failure_messages"):
            return self.failures.get(unit, ())

    async def exit_messages(self, state: UnitState) -> ExitMessages:
        async with self._steps.step("exit_messages"):
            lines = {stream: [_text(e) for e in self.written if e.stream is stream] for stream in Stream}
        return ExitMessages(
            guest=lines[Stream.STDOUT],
            tender=lines[Stream.STDERR],
            console=[_text(e) for e in self.written],
            systemd=(),
            hung=state.unit in self.hung,
        )

    async def log_hung(self, state: UnitState) -> None:
        async with self._steps.step("log_hung"):
            self.hung.add(state.unit)

    async def sync(self, task: TaskName, namespace: str) -> None:
        async with self._steps.step(_at("sync", namespace)):
            self.say(*self.pending)
            self.pending = []

    def say(self, *lines: Line) -> None:
        """Write lines."""
        self.written += lines


def _at(step: str, namespace: str) -> str:
    return f"{step} of {namespace}" if namespace else step


def _text(line: Line) -> str:
    return line.message.decode()


def line(text: str | bytes, stream: Stream = Stream.STDOUT) -> Line:
    """Return a line of a console with its text as its cursor."""
    data = text.encode() if isinstance(text, str) else text
    position = JournalPosition(cursor=str(text), monotonic=0)
    return Line(unit="", stream=stream, data=data + b"\n", position=position, realtime=STARTED)


class FakeMeter(Meter):
    """A meter; `removed`: the removed control groups."""

    def __init__(self, steps: Steps, control_group: str, removed: set[str]) -> None:
        self._steps = steps
        self._control_group = control_group
        self._removed = removed

    def sample(self) -> Usage | None:
        self._steps.taken.append(f"usage {self._control_group}")
        return None if self._control_group in self._removed else Usage(time=1.0)

    def close(self) -> None:
        self._steps.taken.append(f"metered {self._control_group}")


class FakeUsages(CgroupFs):
    """Cgroups and processes."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self.zombies: set[int] = set()  # PIDs of hung tenders (zombie leaders)
        self.cpusets: dict[str, str] = {}  # processors by directory
        self.removed: set[str] = set()  # removed control groups
        self.running: dict[TaskName, Usage] = {}  # usage by task
        self.enabled: tuple[str, ...] = ("cpu", "cpuset", "io", "memory", "pids")  # controllers

    def meter(self, control_group: str) -> "FakeMeter":
        return FakeMeter(self._steps, control_group, self.removed)

    async def cpus(self, directory: str) -> str | None:
        async with self._steps.step(f"cpus {directory}"):
            return self.cpusets.get(directory)

    usages = step("usages", "running")
    controllers = step("controllers", "enabled")
    total_memory = step("total_memory", result=1 << 40)

    async def stalled(self, pid: int) -> bool:
        async with self._steps.step("stalled"):
            return pid in self.zombies


class FakeDiskSpace(DiskSpace):
    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self.failed: Sequence[FailedDisk] = ()
        self.changed: list[tuple[FailedDisk, bool]] = []

    failed_disks = step("look for failed disks", "failed")

    async def changes(self) -> Sequence[tuple[FailedDisk, bool]]:
        async with self._steps.step("look for changes of full disks"):
            found, self.changed = self.changed, []
            return found


class FakeResolvers(HostResolvers):
    """Name servers of networks and of the host; `found`: all that they have, `networks`: argument of the last call,
    `serving`: the networks with a DHCP server."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self.found = UNSET
        self.networks: tuple[NetworkName, ...] = ()
        self.serving: set[str] = set()

    async def of(self, networks: Sequence[NetworkName]) -> Resolver:
        async with self._steps.step("find name servers"):
            self.networks = tuple(networks)
            return self.found

    def versions(self, networks: Sequence[NetworkName]) -> frozenset[int]:
        return frozenset((4,))

    def by_dhcp(self, networks: Sequence[NetworkName]) -> bool:
        return bool(self.serving & set(networks))


class Machine:
    """All backends, with one count of steps."""

    def __init__(self) -> None:
        self.steps = Steps()
        self.images = FakeImages(self.steps)
        self.tenders = FakeTenders(self.steps)
        self.disks = FakeDisks(self.steps)
        self.users = FakeUsers(self.steps)
        self.networks = FakeNetworks(self.steps)
        self.units = FakeUnits(self.steps)
        self.console = FakeConsole(self.steps)
        self.usages = FakeUsages(self.steps)
        self.disk_space = FakeDiskSpace(self.steps)
        self.relay = FakeRelay(self.steps)
        self.resolvers = FakeResolvers(self.steps)

    @property
    def backends(self) -> Backends:
        return cast(Backends, self)

    @property
    def holds(self) -> tuple[set[str], set[TaskName]]:
        """Return the loaded units, and the tasks with a reservation or a user."""
        return set(self.units.loaded), {*self.networks.held, *self.users.held}
