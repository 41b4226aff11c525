"""What may happen, and what must be true afterwards. Pure: a seed is a history, the same one each time.

The model knows tasks only. What kills or restarts what serves them changes nothing in it: that is the claim.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random

MOST_TASKS = 8
SETTLED = 0.6
"""How many of the operations are not followed at once by the next."""

FIRST_PORT = 21000
PREFIX = "chaos-"

DISKS = 4
"""Named disks of guests that write, one after the other."""


def disk_name(number: int) -> str:
    return f"{PREFIX}disk-{number}"


class Door(StrEnum):
    """Who asked for a task."""

    CTL = "solo5ctl"
    NOMAD = "nomad"


class Guest(StrEnum):
    """What a guest does; all but the first two have ended as soon as they were started."""

    COUNTS = "counts"
    WRITES = "writes"
    EXITS = "exits"
    EXITS_7 = "exits with 7"
    ABORTS = "aborts"


class State(StrEnum):
    RUNNING = "running"
    FROZEN = "frozen"
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

    `disk` is the number of the named disk of a guest that writes.
    """

    number: int
    door: Door
    guest: Guest
    tender: str
    disk: int | None = None
    state: State = State.RUNNING
    end: End | None = None
    settled: bool = False
    """Since its last change everything has been as it must be."""

    @property
    def name(self) -> str:
        return f"{PREFIX}{self.number}"

    @property
    def goes_on(self) -> bool:
        """It prints numbered lines until something ends it."""
        return self.guest in (Guest.COUNTS, Guest.WRITES)

    @property
    def disk_name(self) -> str:
        """Its named disk; empty: none."""
        return "" if self.disk is None else disk_name(self.disk)

    @property
    def port(self) -> int:
        """The host's port of a guest that counts."""
        return FIRST_PORT + self.number % 1000


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
    SNAPSHOT = "snapshot of its disk"
    INTRUDE = "a second writer of its disk"


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


AMID = (
    Disturbance.RELAY,
    Disturbance.NETWORKD,
    Disturbance.FLUSH,
    Disturbance.BUS,
    Disturbance.JOURNALD,
    Disturbance.REEXEC,
)
"""What may happen while an act is under way: it succeeds, or whoever does it is told and tries again."""

ALONE = tuple(disturbance for disturbance in Disturbance if disturbance is not Disturbance.CLIENT)
"""What may happen by itself."""

BY_CTL = (Act.SNAPSHOT, Act.INTRUDE)
"""What `solo5ctl` does, also to a task of Nomad."""

KILLABLE = (Act.START, Act.SNAPSHOT)
"""Acts whose `solo5ctl` may be killed in the middle: done again, they succeed."""


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

    def __str__(self) -> str:
        words = [f"{self.act} {self.task.name} ({self.task.door}, {self.task.guest})"] if self.task else []
        words += (
            [f"{self.disturbance}" + (f" {self.delay:.3f} s later" if self.act else "")] if self.disturbance else []
        )
        return ", and ".join(words) + ("" if self.settles else ", then at once")


World = Mapping[str, Task]

_WHILE_IT_RUNS: Mapping[Act, int] = {
    Act.STOP: 2,
    Act.TERMINATE: 1,
    Act.KILL: 1,
    Act.SLAY: 2,
    Act.FREEZE: 2,
}
_WHILE_IT_IS_FROZEN: Mapping[Act, int] = {Act.THAW: 6, Act.STOP: 1, Act.SLAY: 1}
_WHEN_IT_IS_OVER: Mapping[Act, int] = {Act.REMOVE: 8}
_WHILE_IT_WRITES: Mapping[Act, int] = {Act.SNAPSHOT: 4, Act.INTRUDE: 2}


def _weights(task: Task) -> Mapping[Act, int]:
    """What can be done to a task, and how often it is chosen."""
    if task.state is State.ENDED:
        return _WHEN_IT_IS_OVER
    acts = _WHILE_IT_IS_FROZEN if task.state is State.FROZEN else _WHILE_IT_RUNS
    disks = _WHILE_IT_WRITES if task.disk is not None else {}
    return {**acts, **disks, **({Act.REMOVE: 1} if task.door is Door.CTL else {})}


SHORT = ((5107, 20), (1855, 20))
"""Seeds and how many operations of each `make test` performs: together they have in them all that can be chosen."""

_STARTS = 20
_DISTURBANCES = 4
"""For each task that runs: where none does, there is nothing to disturb."""


def history(seed: int) -> Iterator[tuple[Operation, World]]:
    """Operations for ever, each with the world that it leaves."""
    chance = Random(seed)
    world: World = {}
    number = 0
    while True:
        operation = _choose(chance, world, number)
        number += operation.act is Act.START
        world = after(operation, world)
        yield operation, world


def _choose(chance: Random, world: World, number: int) -> Operation:
    choices = [(weight, act, task) for task in world.values() for act, weight in _weights(task).items()]
    starts = _STARTS * (len(world) < MOST_TASKS)
    disturbances = _DISTURBANCES * sum(task.end is None for task in world.values())
    weights = [*(weight for weight, _, _ in choices), starts, disturbances]
    pick = chance.choices(range(len(weights)), weights)[0]
    settles = chance.random() < SETTLED
    if pick > len(choices):
        return Operation(disturbance=chance.choice(ALONE), settles=settles)
    act, task = choices[pick][1:] if pick < len(choices) else (Act.START, _new(chance, number, world))
    disturbance, delay = _amid(chance, act, task)
    return Operation(act=act, task=task, disturbance=disturbance, delay=delay, settles=settles)


def _new(chance: Random, number: int, world: World) -> Task:
    taken = {task.disk for task in world.values() if task.end is None}
    free = [disk for disk in range(DISKS) if disk not in taken]
    guest = chance.choices(list(Guest), [6, 6 if free else 0, 1, 1, 1])[0]
    disk = chance.choice(free) if guest is Guest.WRITES else None
    door, tender = chance.choice(list(Door)), chance.choice(["hvt", "spt"])
    return Task(number=number, door=door, guest=guest, tender=tender, disk=disk)


def _amid(chance: Random, act: Act, task: Task) -> tuple[Disturbance | None, float]:
    """A start by Nomad is left in peace: one that fails is not tried again in jobs that are to run once."""
    if (act is Act.START and task.door is Door.NOMAD) or chance.random() < 0.7:
        return None, 0
    clients = [Disturbance.CLIENT] * 4 if act in KILLABLE else []
    return chance.choice([*AMID, *clients]), chance.uniform(0, 0.3)


def after(operation: Operation, world: World) -> World:
    """The world that an operation leaves."""
    left = _acted(operation, world)
    if operation.disturbance is Disturbance.AGENT_KILLED:
        left = {name: _perhaps_repeated(task) for name, task in left.items()}
    if operation.settles:
        left = {name: replace(task, settled=True) for name, task in left.items()}
    return left


def _acted(operation: Operation, world: World) -> World:
    task = operation.task
    if task is None or operation.act is None:
        return world
    if operation.act is Act.REMOVE:
        return {name: other for name, other in world.items() if name != task.name}
    if operation.act in BY_CTL:
        return world
    return {**world, task.name: replace(_changed(task, operation.act), settled=False)}


def _perhaps_repeated(task: Task) -> Task:
    if task.end is None or task.settled:
        return task
    return replace(task, end=replace(task.end, repeats=task.end.repeats + 1))


def _changed(task: Task, act: Act) -> Task:
    match act:
        case Act.START:
            end = _BY_ITSELF.get(task.guest)
            return replace(task, state=State.ENDED, end=end) if end else task
        case Act.FREEZE:
            return replace(task, state=State.FROZEN)
        case Act.THAW:
            return replace(task, state=State.RUNNING)
        case Act.STOP:
            return replace(task, state=State.ENDED, end=_STOPPED)
        case Act.TERMINATE:
            return replace(task, state=State.ENDED, end=_TERMINATED)
        case _:
            return replace(task, state=State.ENDED, end=_KILLED)
