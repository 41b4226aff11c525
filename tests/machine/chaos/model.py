"""What may happen, and what must be true afterwards. Pure.

The model knows tasks only. What kills or restarts what serves them changes nothing in it: that is the claim.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

FIRST_PORT = 21000
PORTS = 1000
"""Of one edition of the files; those of every other edition are above."""

PREFIX = "chaos-"

DISKS, SERVED = 4, 2
"""Named disks of guests that write, one after the other; and those of guests that serve, beside them."""


def disk_name(number: int) -> str:
    return f"{PREFIX}disk-{number}"


class Door(StrEnum):
    """Who asked for a task."""

    CTL = "solo5ctl"
    NOMAD = "nomad"
    FILE = "file"


class Guest(StrEnum):
    """What a guest does; all but the first three have ended as soon as they were started."""

    COUNTS = "counts"
    WRITES = "writes"
    SERVES = "serves"
    """As the first, with a disk."""
    EXITS = "exits"
    EXITS_7 = "exits with 7"
    ABORTS = "aborts"


class State(StrEnum):
    RUNNING = "running"
    ASLEEP = "asleep"
    FROZEN = "frozen"
    DORMANT = "dormant"
    ENDED = "ended"


@dataclass(frozen=True, kw_only=True)
class End:
    """How a task must have ended.

    Attributes:
        endings: what `solo5ctl inspect` may call it.
        statuses: what Nomad may say of the allocation.
        exit_code: Nomad's, None where that depends on the tender.
        signal: as well.
        repeats: how often Nomad may have the same end again: one for each kill of its agent before everything was as
            it must be. An agent persists the event of an end first, and what follows from it after DestroyTask; one
            that is killed in between receives the end a second time (docs/survival.md).
    """

    endings: frozenset[str]
    statuses: frozenset[str]
    exit_code: int | None = None
    signal: int | None = None
    repeats: int = 0


_BY_ITSELF = {
    Guest.EXITS: End(endings=frozenset({"exited"}), statuses=frozenset({"complete"}), exit_code=0, signal=0),
    Guest.EXITS_7: End(endings=frozenset({"exited"}), statuses=frozenset({"failed"}), exit_code=7, signal=0),
    Guest.ABORTS: End(endings=frozenset({"aborted"}), statuses=frozenset({"failed"}), exit_code=255, signal=0),
}
_STOPPED = End(endings=frozenset({"stopped"}), statuses=frozenset({"complete"}))
_TERMINATED = End(endings=frozenset({"stopped", "killed"}), statuses=frozenset({"complete", "failed"}))
_KILLED = End(endings=frozenset({"killed"}), statuses=frozenset({"failed"}), exit_code=137, signal=9)


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task as it must be; `number` is its own for ever, `end` is there when it has ended.

    `disk` is the number of the named disk of a guest that writes or serves.
    `sleeps`: a frozen one does so, too, once it is thawed.

    Of a declared task (`Door.FILE`):

    Attributes:
        restarts: systemd starts it again after a failure.
        enabled: it is, for the next boot.
        removed: its file is gone; it runs on, and is not started again.
        instance: it is one of a template, which has no other editions.
        image: which image it runs, that of its file (0) or the other one (1); None: either, by the moment of a stop.
        previous: a rollback returns to the other image.
        written: which edition its file is.
        read: which edition PID 1 has read.
        running: which edition its last start was of.
        waits: it is dormant where another one is asleep or has ended without a job of systemd.
        last: how the last run of a dormant one has ended.
    """

    number: int
    door: Door
    guest: Guest
    tender: str
    disk: int | None = None
    state: State = State.RUNNING
    sleeps: bool = False
    end: End | None = None
    settled: bool = False
    """Since its last change everything has been as it must be."""
    restarts: bool = False
    enabled: bool = False
    removed: bool = False
    instance: bool = False
    image: int | None = 0
    previous: bool = False
    runs: int = 1
    written: int = 0
    read: int = 0
    running: int = 0
    waits: bool = False
    last: End | None = None

    @property
    def has_process(self) -> bool:
        """Its tender is there."""
        return self.state not in (State.DORMANT, State.ENDED)

    @property
    def has_network(self) -> bool:
        """It has a lease and a published port."""
        return self.has_nic and self.end is None

    @property
    def has_nic(self) -> bool:
        """Its guest answers at a port, and may sleep."""
        return self.guest in (Guest.COUNTS, Guest.SERVES)

    @property
    def locks(self) -> int:
        """How many disks it has."""
        return {Guest.WRITES: 3, Guest.SERVES: 1}.get(self.guest, 0)

    @property
    def name(self) -> str:
        return f"{self.template}{self.number % PORTS:03}" if self.instance else f"{PREFIX}{self.number}"

    @property
    def template(self) -> str:
        """The template of an instance, which has many."""
        again = "again" if self.restarts else "once"
        return f"{PREFIX}{self.tender}-{again}-{self.number // PORTS}@"

    @property
    def other_image(self) -> int:
        """The image of an update."""
        return 0 if self.image == 1 else 1

    @property
    def goes_on(self) -> bool:
        """It prints numbered lines until something ends it."""
        return self.guest in (Guest.COUNTS, Guest.WRITES, Guest.SERVES)

    @property
    def disk_name(self) -> str:
        """Its named disk; empty: none."""
        return "" if self.disk is None else disk_name(self.disk)

    @property
    def port(self) -> int:
        """The host's port of a guest that counts, of the edition that runs."""
        return self.port_of(self.running)

    def port_of(self, edition: int) -> int:
        """The port of an edition of its file."""
        return FIRST_PORT + self.number % PORTS + edition % 2 * PORTS


class Act(StrEnum):
    """What is done to one task."""

    START = "start"
    STOP = "stop"
    TERMINATE = "signal TERM"
    KILL = "signal KILL"
    SLAY = "kill -9 of the tender"
    FREEZE = "freeze"
    THAW = "thaw"
    REMOVE = "remove"
    SLEEP = "solo5ctl sleep"
    WAKE = "solo5ctl wake"
    REQUEST = "a packet"
    AGAIN = "start again"
    RESTART = "restart"
    EDIT = "edit of its file"
    WITHDRAW = "removal of its file"
    SNAPSHOT = "snapshot of its disk"
    INTRUDE = "a second writer of its disk"
    UPDATE = "update"
    ROLLBACK = "rollback"
    RENEW = "systemctl reload"
    UNREADY = "update to a guest that is not ready"
    REFUSED = "update to an image with other devices"
    STOPPED = "stop amid an update"


class Disturbance(StrEnum):
    """What happens to everything else."""

    PLUGIN = "kill -9 of the plugin"
    RELAY = "kill -9 of the relay"
    NETWORKD = "kill -9 of networkd"
    ALL = "kill -9 of plugin, relay and networkd"
    FLUSH = "flush of nftables"
    BUS = "restart of dbus"
    JOURNALD = "restart of journald"
    REEXEC = "daemon-reexec"
    AGENT = "restart of the agent"
    AGENT_KILLED = "kill -9 of the agent"
    GC = "solo5ctl gc"
    CLIENT = "kill -9 of solo5ctl"
    RELOAD = "daemon-reload"
    PREPARATION = "kill -9 of what prepares and generates"
    UPDATER = "kill -9 of what updates"


AMID = (
    Disturbance.RELAY,
    Disturbance.NETWORKD,
    Disturbance.FLUSH,
    Disturbance.BUS,
    Disturbance.JOURNALD,
    Disturbance.REEXEC,
    Disturbance.RELOAD,
)
"""What may happen while an act is under way: it succeeds, or whoever does it is told and tries again."""

_OF_ACTS = (Disturbance.CLIENT, Disturbance.PREPARATION, Disturbance.UPDATER)

ALONE = tuple(disturbance for disturbance in Disturbance if disturbance not in _OF_ACTS)
"""What may happen by itself."""

BY_CTL = (Act.SNAPSHOT, Act.INTRUDE)
"""What `solo5ctl` does with disks, also with those of a task of Nomad."""

OF_SLEEP = (Act.SLEEP, Act.WAKE, Act.REQUEST)
"""What is done in the same way to tasks of every door."""

KILLABLE = (Act.START, Act.SNAPSHOT, Act.SLEEP, Act.WAKE)
"""Acts whose `solo5ctl` may be killed in the middle: done again, they succeed."""

PREPARED = (Act.START, Act.AGAIN, Act.RESTART, Act.STOP, Act.REMOVE, Act.WITHDRAW, *OF_SLEEP)
"""Acts on declared tasks in whose middle the generator and the preparation may be killed."""

UPDATES = (Act.UPDATE, Act.ROLLBACK, Act.RENEW, Act.UNREADY)
"""Acts of solo5-update@NAME that may be disturbed: done again, they have the same end."""

READS_FILES = (Disturbance.RELOAD, Disturbance.REEXEC, Disturbance.PREPARATION)
"""What has PID 1 read the files; the last is followed by a daemon-reload."""


@dataclass(frozen=True, kw_only=True)
class Operation:
    """An act, a disturbance, or an act and, `delay` seconds after its beginning, a disturbance.

    `settles`: all is looked at before the next operation; otherwise that one comes at once.
    """

    act: Act | None = None
    task: Task | None = None
    disturbance: Disturbance | None = None
    delay: float = 0
    settles: bool = True

    @property
    def kinds(self) -> frozenset[StrEnum]:
        """The act, the disturbance, and of the task the door, the guest and the state before the act."""
        of_task = (self.task.door, self.task.guest, self.task.state) if self.task else ()
        return frozenset(each for each in (self.act, self.disturbance, *of_task) if each)

    def __str__(self) -> str:
        words = [f"{self.act} {self.task.name} ({self.task.door}, {self.task.guest})"] if self.task else []
        words += (
            [f"{self.disturbance}" + (f" {self.delay:.3f} s later" if self.act else "")] if self.disturbance else []
        )
        return ", and ".join(words) + ("" if self.settles else ", then at once")


World = Mapping[str, Task]


def after(operation: Operation, world: World) -> World:
    """The world that an operation leaves."""
    left = _acted(operation, world)
    if operation.disturbance is Disturbance.AGENT_KILLED:
        left = {name: _perhaps_repeated(task) for name, task in left.items()}
    if operation.disturbance in READS_FILES:
        left = _read(left)
    if operation.settles:
        left = {name: replace(task, settled=True) for name, task in left.items()}
    return left


def _acted(operation: Operation, world: World) -> World:
    task = operation.task
    if task is None or operation.act is None:
        return world
    if operation.act in BY_CTL:
        return world
    if task.door is Door.FILE:
        return _of_file(task, operation.act, world)
    if operation.act is Act.REMOVE:
        return {name: other for name, other in world.items() if name != task.name}
    return {**world, task.name: replace(_changed(task, operation.act), settled=False)}


def _of_file(task: Task, act: Act, world: World) -> World:
    """The world that an act on a declared task leaves."""
    others: World = {name: other for name, other in world.items() if name != task.name}
    match act:
        case Act.REMOVE:
            return _read(others)
        case Act.EDIT:
            changed = replace(task, written=task.written + 1)
        case Act.WITHDRAW if task.state is State.DORMANT:
            return _read(others)  # nothing would start it
        case Act.WITHDRAW:
            others = _read(others)
            changed = replace(task, removed=True, enabled=False)
        case Act.START:
            others = _read(others)
            changed = _changed(task, act)
        case Act.UPDATE | Act.ROLLBACK:
            image = task.other_image
            changed = replace(_updated(task), image=image, previous=task.image is not None)
        case Act.RENEW | Act.UNREADY:  # with the end of the guest beside it, its network is attached again
            changed = _updated(task)
        case Act.REFUSED:
            changed = task
        case Act.STOPPED:
            changed = replace(_changed(task, Act.STOP), image=None, previous=False)
        case Act.AGAIN | Act.RESTART:
            changed = _changed(_started(task), Act.START)
        case _ if comes_back(task, act) or (task.state is State.DORMANT and act in OF_SLEEP):
            changed = _started(task)
        case _ if becomes_dormant(task, act):
            end = _STOPPED if act is Act.SLEEP else _changed(task, act).end
            changed = replace(task, state=State.DORMANT, last=end)
        case _:
            changed = _changed(task, act)
            if task.removed and changed.end:
                return others  # nothing is left that could be started again
    return {**others, task.name: replace(changed, settled=False)}


def comes_back(task: Task, act: Act) -> bool:
    """Whether systemd starts it again: solo5-hvt that gets SIGTERM exits with status 1, a failure to systemd."""
    failures = {Act.SLAY, Act.KILL, *([Act.TERMINATE] if task.tender == "hvt" else [])}
    return task.restarts and not task.removed and act in failures


def becomes_dormant(task: Task, act: Act) -> bool:
    """Whether its end is none by a job of systemd, and it is not started again at once."""
    ends = act in (Act.SLEEP, Act.TERMINATE, Act.KILL, Act.SLAY)
    return task.waits and not task.removed and ends and not comes_back(task, act)


def _started(task: Task) -> Task:
    return replace(task, state=State.RUNNING, sleeps=False, end=None, last=None, runs=task.runs + 1, running=task.read)


def _updated(task: Task) -> Task:
    """A guest that is awake; of a new run or, after the end of the one beside it, of the old one."""
    return replace(task, state=State.RUNNING, runs=task.runs + 1)


def _read(world: World) -> World:
    """The world after PID 1 has read all files; what runs is as it was."""
    return {name: task if task.removed else replace(task, read=task.written) for name, task in world.items()}


def _perhaps_repeated(task: Task) -> Task:
    if task.end is None or task.settled:
        return task
    return replace(task, end=replace(task.end, repeats=task.end.repeats + 1))


def _changed(task: Task, act: Act) -> Task:
    match act:
        case Act.START:
            end = _BY_ITSELF.get(task.guest)
            return replace(task, state=State.ENDED, end=end) if end else task
        case Act.SLEEP | Act.WAKE | Act.REQUEST if task.state is State.FROZEN:
            return replace(task, sleeps=act is Act.SLEEP)
        case Act.SLEEP:
            return replace(task, state=State.ASLEEP)
        case Act.WAKE | Act.REQUEST:
            return replace(task, state=State.RUNNING)
        case Act.FREEZE:
            return replace(task, state=State.FROZEN, sleeps=task.state is State.ASLEEP)
        case Act.THAW:
            return replace(task, state=State.ASLEEP if task.sleeps else State.RUNNING, sleeps=False)
        case Act.STOP:
            return replace(task, state=State.ENDED, sleeps=False, end=task.last or _STOPPED, last=None)
        case Act.TERMINATE:
            return replace(task, state=State.ENDED, sleeps=False, end=_TERMINATED)
        case _:
            return replace(task, state=State.ENDED, sleeps=False, end=_KILLED)
