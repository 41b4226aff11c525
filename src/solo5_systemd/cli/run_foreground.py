"""`solo5ctl run` in the foreground: copies the console, forwards signals, exits with the task's status.

SIGINT or SIGTERM during the start cancels it, and everything is rolled back. Afterwards the first one stops the task
and the second kills it. If this process is killed, the task keeps running.
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

FORWARDED_SIGNALS: Mapping[signals.Signals, StopSignal] = {
    signals.SIGINT: StopSignal.INT,
    signals.SIGTERM: StopSignal.TERM,
}


async def remove_existing(engine: "Runtime", name: TaskName) -> None:
    """Remove the task of this name, if there is one, running or not."""
    with suppress(NoSuchTaskError):
        await engine.remove(name, force=True)


async def run_attached(engine: "Runtime", workload: Workload, screen: Screen, *, remove: bool) -> int:
    """Start a task, copy its console until it ends, and return its exit status.

    Args:
        engine: a connected engine.
        workload: the task to start.
        screen: the output.
        remove: remove the task when it has ended.

    Raises:
        DependencyError: libsystemd is missing; the task is removed again.
        Solo5Error: the start failed, or the task was removed meanwhile.
    """
    with _cancelled_by_sigterm():
        started = await engine.start(workload)
    with _signal_queue() as received:
        task = await engine.task(started.name)
        async with asyncio.TaskGroup() as group:
            passing = group.create_task(_forward_signals(received, engine, task, group))
            try:
                await copy_console(engine.console(task, follow=True), screen, write_plain)
            except DependencyError:  # without libsystemd the task would run unseen
                await remove_existing(engine, task.name)
                raise
            passing.cancel()
        ended = await engine.wait(task.name)
    if remove:
        await engine.remove(task.name, force=False)
    return _report_outcome(ended, screen)


def _report_outcome(task: Task, screen: Screen) -> int:
    outcome = task.outcome or Outcome(ending=Ending.UNKNOWN, sentence="ended with unknown status")
    # A tender that refuses an image writes the reason to the console itself.
    if not outcome.plain and outcome.ending is not Ending.TENDER_REFUSED:
        screen.message(f"{task.name}: {outcome.verdict}")
    return outcome.shell_status


async def _forward_signals(
    received: "asyncio.Queue[signals.Signals]", engine: "Runtime", task: Task, group: asyncio.TaskGroup
) -> None:
    signal = await received.get()
    stopping = group.create_task(_stop(engine, task, FORWARDED_SIGNALS[signal]))
    await received.get()
    with suppress(InvalidRequestError, NoSuchTaskError):  # the first signal has ended it
        await engine.kill(task.name, signals.SIGKILL)
    await stopping


async def _stop(engine: "Runtime", task: Task, signal: StopSignal) -> None:
    with suppress(NoSuchTaskError):
        await engine.stop(task.name, signal=signal)


@contextmanager
def _signal_queue() -> Iterator["asyncio.Queue[signals.Signals]"]:
    """Handle SIGINT and SIGTERM by putting them into a queue."""
    queue: asyncio.Queue[signals.Signals] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for signal in FORWARDED_SIGNALS:
        loop.add_signal_handler(signal, queue.put_nowait, signal)
    try:
        yield queue
    finally:
        for signal in FORWARDED_SIGNALS:
            loop.remove_signal_handler(signal)


@contextmanager
def _cancelled_by_sigterm() -> Iterator[None]:
    """Cancel the current asyncio task on SIGTERM; asyncio.run() does the same on SIGINT."""
    loop = asyncio.get_running_loop()
    this = asyncio.current_task()
    if this is None:
        raise Solo5Error("no asyncio task is running: expected to be called in one.")
    loop.add_signal_handler(signals.SIGTERM, this.cancel)
    try:
        yield
    finally:
        loop.remove_signal_handler(signals.SIGTERM)
