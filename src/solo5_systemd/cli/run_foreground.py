"""A task in the foreground: its console copied, our signals passed on, its end made ours.

Before the task has started, a signal abandons the start, which leaves nothing. From then on the first INT or TERM
asks the task to stop and the second kills it. Should this process be killed instead, the task goes on.
"""

import asyncio
import signal as signals
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from solo5_systemd.cli.console_output import copy_console, write_plain
from solo5_systemd.cli.screen import Screen
from solo5_systemd.engine.task import Task
from solo5_systemd.errors import DependencyError, InvalidRequestError, NoSuchTaskError, Solo5Error
from solo5_systemd.names import TaskName
from solo5_systemd.unit.outcome import Ending, Outcome
from solo5_systemd.workload import StopSignal, Workload

if TYPE_CHECKING:
    from solo5_systemd.engine.runtime import Runtime

PASSED_ON: Mapping[signals.Signals, StopSignal] = {signals.SIGINT: StopSignal.INT, signals.SIGTERM: StopSignal.TERM}


async def make_room(engine: "Runtime", name: TaskName) -> None:
    """Remove the task that has this name, running or not."""
    with suppress(NoSuchTaskError):
        await engine.remove(name, force=True)


async def attend(engine: "Runtime", workload: Workload, screen: Screen, *, remove: bool) -> int:
    """Start a task and stay with it; its exit status.

    Raises:
        DependencyError: its console cannot be read; the task is removed again.
        Solo5Error: it did not start, or was removed behind our back.
    """
    with _terminable():
        started = await engine.start(workload)
    with _received() as received:
        task = await engine.task(started.name)
        async with asyncio.TaskGroup() as group:
            passing = group.create_task(_pass_on(received, engine, task, group))
            try:
                await copy_console(engine, task, screen, write_plain, follow=True)
            except DependencyError:  # there is no journalctl: nothing of the task would be seen
                await make_room(engine, task.name)
                raise
            passing.cancel()
        ended = await engine.wait(task.name)
    if remove:
        await engine.remove(task.name, force=False)
    return _conclude(ended, screen)


def _conclude(task: Task, screen: Screen) -> int:
    outcome = task.outcome or Outcome(ending=Ending.UNKNOWN, sentence="ended, and nobody knows how")
    if not outcome.plain and outcome.ending is not Ending.TENDER_REFUSED:  # which the tender has said itself
        screen.say(f"{task.name}: {outcome.verdict}")
    return outcome.shell_status


async def _pass_on(
    received: "asyncio.Queue[signals.Signals]", engine: "Runtime", task: Task, group: asyncio.TaskGroup
) -> None:
    signal = await received.get()
    stopping = group.create_task(_stop(engine, task, PASSED_ON[signal]))
    await received.get()
    with suppress(InvalidRequestError, NoSuchTaskError):  # it ended by the first
        await engine.kill(task.name, signals.SIGKILL)
    await stopping


async def _stop(engine: "Runtime", task: Task, signal: StopSignal) -> None:
    with suppress(NoSuchTaskError):
        await engine.stop(task.name, signal=signal)


@contextmanager
def _received() -> Iterator["asyncio.Queue[signals.Signals]"]:
    """INT and TERM as they come, instead of what they would do to us."""
    queue: asyncio.Queue[signals.Signals] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for signal in PASSED_ON:
        loop.add_signal_handler(signal, queue.put_nowait, signal)
    try:
        yield queue
    finally:
        for signal in PASSED_ON:
            loop.remove_signal_handler(signal)


@contextmanager
def _terminable() -> Iterator[None]:
    """TERM abandons what is under way; asyncio.run() sees to INT."""
    loop = asyncio.get_running_loop()
    this = asyncio.current_task()
    if this is None:
        raise Solo5Error("a start needs a task of its own.")
    loop.add_signal_handler(signals.SIGTERM, this.cancel)
    try:
        yield
    finally:
        loop.remove_signal_handler(signals.SIGTERM)
