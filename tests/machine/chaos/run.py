"""A history, performed: after every operation the machine is, within some seconds, what the model says."""

import shutil
import time
from collections.abc import Callable
from itertools import islice

from tests.machine.chaos import disks
from tests.machine.chaos.evidence import evidence
from tests.machine.chaos.history import history
from tests.machine.chaos.invariants import Truth
from tests.machine.chaos.model import PREFIX, Act, Door, Operation, State, World, after
from tests.machine.chaos.operations import perform
from tests.machine.conftest import eventually, ok, sh, systemctl
from tests.machine.declared import ETC
from tests.machine.nomad.agent import Agent, api
from tests.machine.nomad.jobs import Jobs

from solo5_systemd.declared.update_files import PREVIOUS
from solo5_systemd.network.remembered_addresses import ADDRESSES

NO_INTERNAL_ERROR = "^(?!internal error|Task exception was never retrieved|Exception in callback|Traceback)"
"""Lines of services that are killed, or whose bus is: any but those of a fault of their own code."""

SETTLING = 120.0
"""Seconds in which all must be as it should: less than one where nothing else is to be done, a hundred where the bus
went while a task's network was being given back, which then is a sweep's to do (docs/recovery.md)."""


class ChaosError(AssertionError):
    """The machine is not what it must be."""


def run(
    seed: int, count: int, agent: Agent, say: Callable[[str], None], *, varied: bool = False, clear: bool = True
) -> None:
    """Perform so many operations of a seed, then remove every task.

    Without `clear` everything is left as it is after a failure, to be looked at.

    Raises:
        ChaosError: with the seed, the operations until then, and all that is wrong.
    """
    disks.set_up()
    truth = Truth()
    done: list[str] = []
    world: World = {}
    try:
        for operation, world in islice(history(seed, varied=varied), count):
            _step(operation, world, agent, truth, done, seed)
            say(f"{len(done):4} {done[-1]}")
        while world:
            world = _one_less(world, agent, truth, done, seed)
        _forget()
    except ChaosError:
        if clear:
            _clear()
            _forget()
        raise
    finally:
        eventually(lambda: agent.driver().get("Healthy"), "Nomad has heard that the driver is well")


def _forget() -> None:
    """Remove what is kept on purpose: disks, and the addresses and earlier images of declared tasks."""
    disks.tear_down()
    for path in PREVIOUS.glob(f"{PREFIX}*.json"):
        path.unlink()
        shutil.rmtree(path.with_suffix(""), ignore_errors=True)
    for path in ADDRESSES.glob(f"{PREFIX}*"):
        path.unlink()


def _clear() -> None:
    """Take away all that a history which went wrong has left, whatever the model says."""
    for name in ok("solo5ctl", "ps", "--all", "--quiet").split():
        if name.startswith(PREFIX):
            sh("solo5ctl", "rm", "--force", name)
    for path in ETC.glob(f"{PREFIX}*.unikernel"):
        sh("systemctl", "disable", "--now", f"{path.stem}.service")
        sh("solo5ctl", "rm", "--force", path.stem)
        path.unlink()
    for directory in ETC.glob(f"{PREFIX}*.unikernel.d"):
        shutil.rmtree(directory)
    systemctl("daemon-reload")
    sh("systemctl", "reset-failed", f"{PREFIX}*", f"solo5-*@{PREFIX}*")
    left = Jobs()
    for job in api(f"/v1/jobs?prefix={PREFIX}"):
        left.expect(job["ID"])
    left.purge()


def _one_less(world: World, agent: Agent, truth: Truth, done: list[str], seed: int) -> World:
    """Take one task away: what runs under Nomad is stopped first, so that its log is complete when it goes."""
    task = next(iter(world.values()))
    stopped_by_removal = task.door is Door.FILE and not task.removed and task.state is not State.FROZEN
    act = Act.REMOVE if task.end or stopped_by_removal else Act.STOP
    operation = Operation(act=act, task=task)
    world = after(operation, world)
    _step(operation, world, agent, truth, done, seed)
    return world


def _step(operation: Operation, world: World, agent: Agent, truth: Truth, done: list[str], seed: int) -> None:
    begun = time.monotonic()
    try:
        perform(operation, agent)
        wrong = _settled(truth, world) if operation.settles else []
    except AssertionError as error:
        wrong = [str(error)]
    done.append(f"{operation} [{time.monotonic() - begun:.1f} s]")
    if wrong:
        found = evidence(filter(None, (*world.values(), operation.task)), wrong)
        raise ChaosError("\n".join([f"seed {seed}:", *done, "and then:", *wrong, *found]))


def _settled(truth: Truth, world: World) -> list[str]:
    """What is still wrong when the time is over; nothing as soon as all is right."""
    end = time.monotonic() + SETTLING
    while True:
        try:
            wrong = truth.complaints(world)
        except AssertionError as error:  # a question was not answered: the agent or the bus is on its way back
            wrong = [str(error)]
        if not wrong or time.monotonic() > end:
            return wrong
        time.sleep(0.1)
