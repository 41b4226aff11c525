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
PORTS = 1000
"""Of one edition of the files; those of every other edition are above."""

PREFIX = "chaos-"

DISKS = 4
"""Named disks of guests that write, one after the other."""


def disk_name(number: int) -> str:
    return f"{PREFIX}disk-{number}"


class Door(StrEnum):
    """Who asked for a task."""

    CTL = "solo5ctl"
    NOMAD = "nomad"
    FILE = "file"


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

    Of a declared task (`Door.FILE`):

    Attributes:
        restarts: systemd starts it again after a failure.
        enabled: it is, for the next boot.
        removed: its file is gone; it runs on, and is not started again.
        instance: it is one of a template, which has no other editions.
        image: which image it runs, that of its file (0) or the other one (1); None: either, by the moment of a stop.
        previous: a rollback returns to the other image.
        runs: how often it was started.
        written: which edition its file is.
        read: which edition PID 1 has read.
        running: which edition its last start was of.
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
        return self.guest in (Guest.COUNTS, Guest.WRITES)

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
"""What `solo5ctl` does, also to a task of Nomad."""

KILLABLE = (Act.START, Act.SNAPSHOT)
"""Acts whose `solo5ctl` may be killed in the middle: done again, they succeed."""

PREPARED = (Act.START, Act.AGAIN, Act.RESTART, Act.STOP, Act.REMOVE, Act.WITHDRAW)
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
        """The act, the disturbance, the door and the guest."""
        of_task = (self.task.door, self.task.guest) if self.task else ()
        return frozenset(each for each in (self.act, self.disturbance, *of_task) if each)

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
_WHILE_IT_IS_DECLARED: Mapping[Act, int] = {Act.RESTART: 4, Act.EDIT: 2, Act.WITHDRAW: 1, Act.REMOVE: 1}
_WHEN_IT_CAN_START_AGAIN: Mapping[Act, int] = {Act.AGAIN: 6, Act.EDIT: 2, Act.REMOVE: 4}
_WHILE_IT_CAN_BE_UPDATED: Mapping[Act, int] = {Act.UPDATE: 6, Act.UNREADY: 2, Act.REFUSED: 1, Act.STOPPED: 2}
_WHILE_IT_WRITES: Mapping[Act, int] = {Act.SNAPSHOT: 4, Act.INTRUDE: 2}


def _weights(task: Task, *, edited: bool) -> Mapping[Act, int]:
    """What can be done to a task, and how often it is chosen; `edited`: PID 1 has not read all files."""
    if task.state is State.ENDED:
        acts = _WHEN_IT_CAN_START_AGAIN if task.door is Door.FILE else _WHEN_IT_IS_OVER
        return _of_instance(acts) if task.instance else acts
    acts = dict(_WHILE_IT_IS_FROZEN if task.state is State.FROZEN else _WHILE_IT_RUNS)
    if task.disk is not None:
        acts |= _WHILE_IT_WRITES
    if task.door is Door.CTL:
        acts |= {Act.REMOVE: 1}
    if task.door is Door.FILE and task.state is State.FROZEN:
        del acts[Act.SLAY]  # systemd can neither start nor stop it afterwards (docs/declared.md)
    elif task.door is Door.FILE and not task.removed:
        acts |= _WHILE_IT_IS_DECLARED
        if not edited and task.running == task.read:  # an update has PID 1 read all files
            acts |= _WHILE_IT_CAN_BE_UPDATED
            acts |= {Act.ROLLBACK: 4} if task.previous else {}
            acts |= {Act.RENEW: 3} if task.guest is Guest.COUNTS else {}
    return _of_instance(acts) if task.instance else acts


def _of_instance(acts: Mapping[Act, int]) -> Mapping[Act, int]:
    """Its file is that of others."""
    return {act: weight for act, weight in acts.items() if act not in (Act.EDIT, Act.WITHDRAW)}


SHORT = (691, 37)
"""The seed of the varied history that `make test` performs, and how many operations: it has all that can be chosen."""

ATTEMPTS = 12
"""Operations that are chosen anew in a varied history, as long as one has nothing that was not there before."""

_STARTS = 20
_DISTURBANCES = 4
"""For each task that runs: where none does, there is nothing to disturb."""


def history(seed: int, *, varied: bool = False) -> Iterator[tuple[Operation, World]]:
    """Operations for ever, each with the world that it leaves; `varied`: early all that can be chosen."""
    chance = Random(seed)
    world: World = {}
    number = 0
    seen: set[StrEnum] = set()
    while True:
        operation = _choose(chance, world, number)
        for _ in range(ATTEMPTS if varied else 0):
            if operation.kinds - seen:
                break
            operation = _choose(chance, world, number)
        seen |= operation.kinds
        number += operation.act is Act.START
        world = after(operation, world)
        yield operation, world


def _choose(chance: Random, world: World, number: int) -> Operation:
    edited = any(task.written != task.read for task in world.values() if not task.removed)
    choices = [(weight, act, task) for task in world.values() for act, weight in _weights(task, edited=edited).items()]
    starts = _STARTS * (len(world) < MOST_TASKS)
    disturbances = _DISTURBANCES * sum(task.end is None for task in world.values())
    weights = [*(weight for weight, _, _ in choices), starts, disturbances]
    pick = chance.choices(range(len(weights)), weights)[0]
    settles = chance.random() < SETTLED
    if pick > len(choices):
        return Operation(disturbance=chance.choice(ALONE), settles=settles)
    act, task = choices[pick][1:] if pick < len(choices) else (Act.START, _new(chance, number, world))
    disturbance, delay = _amid(chance, act, task)
    # What systemd starts again by itself has the edition of then.
    settles = settles or _comes_back(task, act)
    return Operation(act=act, task=task, disturbance=disturbance, delay=delay, settles=settles)


def _new(chance: Random, number: int, world: World) -> Task:
    taken = {task.disk for task in world.values() if task.end is None or task.door is Door.FILE}
    free = [disk for disk in range(DISKS) if disk not in taken]
    guest = chance.choices(list(Guest), [6, 6 if free else 0, 1, 1, 1])[0]
    disk = chance.choice(free) if guest is Guest.WRITES else None
    door, tender = chance.choice(list(Door)), chance.choice(["hvt", "spt"])
    task = Task(number=number, door=door, guest=guest, tender=tender, disk=disk)
    if door is not Door.FILE:
        return task
    restarts = guest in (Guest.COUNTS, Guest.WRITES, Guest.EXITS) and chance.random() < 0.5
    instance = guest is Guest.COUNTS and chance.random() < 0.5
    return replace(task, restarts=restarts, enabled=chance.random() < 0.5, instance=instance)


def _amid(chance: Random, act: Act, task: Task) -> tuple[Disturbance | None, float]:
    """A start by Nomad is left in peace: one that fails is not tried again in jobs that are to run once."""
    if (act is Act.START and task.door is Door.NOMAD) or act is Act.STOPPED or chance.random() < 0.7:
        return None, 0
    if act in UPDATES:
        return chance.choice([*AMID, *[Disturbance.UPDATER] * 5, Disturbance.PREPARATION]), chance.uniform(0, 3)
    choices = list(AMID)
    if task.door is Door.FILE:
        choices += [Disturbance.PREPARATION] * 4 if act in PREPARED else []
        if task.written != task.read:  # which of the two a start is of would be chance
            choices = [choice for choice in choices if choice not in (Disturbance.RELOAD, Disturbance.REEXEC)]
    if act in KILLABLE and (task.door is not Door.FILE or act in BY_CTL):
        choices += [Disturbance.CLIENT] * 4
    return chance.choice(choices), chance.uniform(0, 0.3)


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
        case Act.WITHDRAW:
            others = _read(others)
            changed = replace(task, removed=True, enabled=False)
        case Act.START:
            others = _read(others)
            changed = _changed(task, act)
        case Act.UPDATE | Act.ROLLBACK:
            image = task.other_image
            changed = replace(task, image=image, previous=task.image is not None, runs=task.runs + 1)
        case Act.UNREADY | Act.RENEW:
            changed = replace(task, runs=task.runs + 1)
        case Act.REFUSED:
            changed = task
        case Act.STOPPED:
            changed = replace(_changed(task, Act.STOP), image=None, previous=False)
        case Act.AGAIN | Act.RESTART:
            changed = _changed(_started(task), Act.START)
        case _ if _comes_back(task, act):
            changed = _started(task)
        case _:
            changed = _changed(task, act)
            if task.removed and changed.end:
                return others  # nothing is left that could be started again
    return {**others, task.name: replace(changed, settled=False)}


def _comes_back(task: Task, act: Act) -> bool:
    """Whether systemd starts it again: solo5-hvt that gets SIGTERM exits with status 1, a failure to systemd."""
    failures = {Act.SLAY, Act.KILL, *([Act.TERMINATE] if task.tender == "hvt" else [])}
    return task.restarts and not task.removed and act in failures


def _started(task: Task) -> Task:
    return replace(task, state=State.RUNNING, end=None, runs=task.runs + 1, running=task.read)


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
