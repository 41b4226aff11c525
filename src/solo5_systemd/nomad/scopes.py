"""Tasks in scopes: their tenders are this process's children, so that it alone can learn how they end.

A later driver finds such a task by its unit, can stop it and measure it, and says of its end that it is unknown.
"""

import asyncio
import json
import os
import pickle
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from solo5_systemd.errors import BY_DBUS_NAME, HostError, Solo5Error
from solo5_systemd.names import TaskName, task_scope
from solo5_systemd.nomad.descriptors import restore_limit
from solo5_systemd.settings import Settings
from solo5_systemd.workload import Workload

if TYPE_CHECKING:
    from solo5_systemd.runtime import Runtime

CHILD = "solo5_systemd.nomad.child"
REPORT_LIMIT = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Scopes:
    """The children, by task."""

    children: dict[TaskName, Process] = field(default_factory=dict)

    async def start(self, engine: "Runtime", settings: Settings, workload: Workload) -> None:
        """Start a child that enters the task's scope and becomes its tender, by the settings that the driver has.

        Raises:
            Solo5Error: it did not; nothing of it is left.
        """
        reading, writing = os.pipe2(os.O_CLOEXEC)
        try:
            child = await _spawn(engine, settings, workload, writing)
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        try:
            report = await asyncio.to_thread(_read, reading)
        except BaseException:
            await asyncio.shield(_give_up(engine, workload.name, child))
            raise
        if report:
            await child.wait()
            raise _error(report)
        self.children[workload.name] = child

    async def wait(self, name: TaskName) -> int | None:
        """The child's exit status, negative for a signal; None where the task is no child of this process."""
        child = self.children.get(name)
        return None if child is None else await child.wait()

    def forget(self, name: TaskName) -> None:
        self.children.pop(name, None)


async def _give_up(engine: "Runtime", name: TaskName, child: Process) -> None:
    """End a child that may be a tender already, and undo what it may have made."""
    with suppress(ProcessLookupError):
        child.kill()
    await child.wait()
    with suppress(Solo5Error):  # what went wrong before is to be told
        await engine.discard(name)


async def _spawn(engine: "Runtime", settings: Settings, workload: Workload, report: int) -> Process:
    stdout, stderr = await engine.open_console(task_scope(workload.name))
    try:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-m", CHILD, str(report),
            stdin=PIPE, stdout=stdout, stderr=stderr, pass_fds=(report,), start_new_session=True, cwd="/",
        )  # fmt: skip
    except OSError as error:
        raise HostError(f"a process for the task's tender cannot be started: {error.strerror}.") from error
    finally:
        os.close(stdout)
        os.close(stderr)
    assert child.stdin is not None  # noqa: S101 - it was asked for
    with suppress(ProcessLookupError):
        restore_limit(child.pid)  # before it has its input, hence before it executes the tender
    child.stdin.write(pickle.dumps((settings, workload)))
    child.stdin.close()
    return child


def _read(descriptor: int) -> bytes:
    with open(descriptor, "rb") as report:
        return report.read(REPORT_LIMIT)


def _error(report: bytes) -> Solo5Error:
    try:
        words = json.loads(report)
        return BY_DBUS_NAME[words["name"]](words["sentence"], words["hint"])
    except (ValueError, KeyError, TypeError):
        return HostError("the child that was to become the task's tender failed in a way that nobody foresaw.")
