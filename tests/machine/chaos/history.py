"""Which operations are chosen: a seed is a history, the same one each time. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from tests.machine.chaos.model import (
    ALONE,
    AMID,
    DISKS,
    KILLABLE,
    OF_SLEEP,
    PREPARED,
    SERVED,
    UPDATES,
    Act,
    Disturbance,
    Door,
    Guest,
    Operation,
    State,
    Task,
    World,
    after,
    becomes_dormant,
    comes_back,
)

if TYPE_CHECKING:
    from enum import StrEnum

MOST_TASKS = 8
SETTLED = 0.6
"""How many of the operations are not followed at once by the next."""

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
_WHILE_IT_IS_DORMANT: Mapping[Act, int] = {Act.REQUEST: 10, Act.WAKE: 4, Act.AGAIN: 2, Act.STOP: 2} | {
    **_WHILE_IT_IS_DECLARED,
    Act.RESTART: 1,
}
_WHILE_IT_IS_ASLEEP: Mapping[Act, int] = {Act.REQUEST: 8, Act.WAKE: 4}
_WHILE_IT_CAN_BE_UPDATED: Mapping[Act, int] = {Act.UPDATE: 6, Act.UNREADY: 2, Act.REFUSED: 1, Act.STOPPED: 2}
_WHILE_IT_WRITES: Mapping[Act, int] = {Act.SNAPSHOT: 4, Act.INTRUDE: 2}


def _weights(task: Task, *, edited: bool) -> Mapping[Act, int]:
    """What can be done to a task, and how often it is chosen; `edited`: PID 1 has not read all files."""
    if task.state is State.DORMANT:
        return _WHILE_IT_IS_DORMANT
    if task.state is State.ENDED:
        acts = _WHEN_IT_CAN_START_AGAIN if task.door is Door.FILE else _WHEN_IT_IS_OVER
        return _of_instance(acts) if task.instance else acts
    acts = dict(_WHILE_IT_IS_FROZEN if task.state is State.FROZEN else _WHILE_IT_RUNS)
    acts |= _of_sleep(task)
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


def _of_sleep(task: Task) -> Mapping[Act, int]:
    """What puts a task that runs to sleep, and wakes it: one with a NIC."""
    if not task.has_nic:
        return {}
    if task.waits:  # a frozen one ends when it is thawed; nothing would start one again whose file is gone
        return {} if task.removed or task.state is State.FROZEN else {Act.SLEEP: 20}
    if task.state is State.ASLEEP:
        return _WHILE_IT_IS_ASLEEP
    if task.state is State.FROZEN:
        return {Act.WAKE: 1} if task.sleeps else {Act.SLEEP: 1}
    return {Act.SLEEP: 10}


def _of_instance(acts: Mapping[Act, int]) -> Mapping[Act, int]:
    """Its file is that of others."""
    return {act: weight for act, weight in acts.items() if act not in (Act.EDIT, Act.WITHDRAW)}


SHORT = (195, 48)
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
    # What systemd starts again by itself has the edition of then; what becomes dormant runs on for a moment.
    settles = settles or comes_back(task, act) or becomes_dormant(task, act)
    return Operation(act=act, task=task, disturbance=disturbance, delay=delay, settles=settles)


def _new(chance: Random, number: int, world: World) -> Task:
    taken = {task.disk for task in world.values() if task.end is None or task.door is Door.FILE}
    free = {
        Guest.WRITES: [disk for disk in range(DISKS) if disk not in taken],
        Guest.SERVES: [disk for disk in range(DISKS, DISKS + SERVED) if disk not in taken],
    }
    guest = chance.choices(list(Guest), [9, *(5 if free[each] else 0 for each in free), 1, 1, 1])[0]
    disk = chance.choice(free[guest]) if guest in free else None
    doors = [door for door in Door if guest is not Guest.SERVES or door is not Door.FILE]
    door, tender = chance.choice(doors), chance.choice(["hvt", "spt"])
    task = Task(number=number, door=door, guest=guest, tender=tender, disk=disk)
    if door is not Door.FILE:
        return task
    restarts = guest in (Guest.COUNTS, Guest.WRITES, Guest.EXITS) and chance.random() < 0.5
    kind = chance.random() if guest is Guest.COUNTS else 1
    enabled = chance.random() < 0.5
    return replace(task, restarts=restarts, enabled=enabled, instance=kind < 0.35, waits=0.35 <= kind < 0.75)


def _amid(chance: Random, act: Act, task: Task) -> tuple[Disturbance | None, float]:
    """A start by Nomad is left in peace: one that fails is not tried again in jobs that are to run once."""
    if (act is Act.START and task.door is Door.NOMAD) or act is Act.STOPPED:
        return None, 0
    if chance.random() < (0.5 if act in OF_SLEEP else 0.7):
        return None, 0
    if act in UPDATES:
        return chance.choice([*AMID, *[Disturbance.UPDATER] * 5, Disturbance.PREPARATION]), chance.uniform(0, 3)
    choices = list(AMID)
    if task.door is Door.FILE:
        choices += [Disturbance.PREPARATION] * 4 if act in PREPARED else []
        if task.written != task.read:  # which of the two a start is of would be chance
            choices = [choice for choice in choices if choice not in (Disturbance.RELOAD, Disturbance.REEXEC)]
    if act in KILLABLE and (task.door is not Door.FILE or act is not Act.START):
        choices += [Disturbance.CLIENT] * 4
    return chance.choice(choices), chance.uniform(0, 0.3)
