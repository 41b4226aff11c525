"""Tasks in scopes: their tenders are this process's children, so that it alone can learn how they end.

A later driver finds such a task by its unit, can stop it and measure it, and says of its end that it is unknown.
"""

import asyncio
import os
import pickle
import sys
import time
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from solo5_systemd.engine.task import Started
from solo5_systemd.errors import HostError, Solo5Error
from solo5_systemd.names import TaskName, task_scope
from solo5_systemd.nomad.config.ready import Rule
from solo5_systemd.nomad.events.messages import Announcement
from solo5_systemd.nomad.events.start_progress import Audience
from solo5_systemd.nomad.process import restore_limit
from solo5_systemd.nomad.scope.protocol import Begins, Enters, decode, unforeseen
from solo5_systemd.settings import Settings
from solo5_systemd.workload import Workload

if TYPE_CHECKING:
    from solo5_systemd.engine.runtime import Runtime

CHILD = "solo5_systemd.nomad.scope.child"
LONGEST_LINE = 1 << 16
"""Bytes of a child's report; the addresses of a manifest's 63 NICs take a third of it."""


@dataclass(frozen=True, kw_only=True)
class Scopes:
    """The children, by task."""

    children: dict[TaskName, Process] = field(default_factory=dict)

    async def start(
        self, engine: "Runtime", settings: Settings, workload: Workload, rule: Rule | None, audience: Audience
    ) -> Started:
        """Start a child that enters the task's scope and becomes its tender.

        Args:
            engine: to open its console, and to undo what it leaves.
            settings: those that the driver has.
            workload: what to run.
            rule: by which the task is to be ready.
            audience: who hears of the child's steps.

        Raises:
            Solo5Error: it did not; nothing of it is left.
        """
        since = time.time_ns() // 1000
        reading, writing = os.pipe2(os.O_CLOEXEC)
        try:
            wanted = pickle.dumps((settings, workload, rule))
            child = await _spawn(engine, settings.log_namespace, workload, wanted, writing)
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        try:
            last = await _heard(reading, audience)
            reservation = await engine.reservation(workload.name)
        except BaseException:
            await asyncio.shield(_give_up(engine, workload.name, child))
            raise
        if isinstance(last, Solo5Error):
            await child.wait()
            raise last
        self.children[workload.name] = child
        return Started(
            name=workload.name,
            unit=task_scope(workload.name),
            invocation=last.invocation,
            pid=0,
            started=since,
            control_group=last.control_group,
            reservation=reservation,
            log_namespace=settings.log_namespace,
        )

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


async def _spawn(engine: "Runtime", log_namespace: str, workload: Workload, wanted: bytes, report: int) -> Process:
    stdout, stderr = await engine.open_console(task_scope(workload.name), log_namespace)
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
    child.stdin.write(wanted)
    child.stdin.close()
    return child


async def _heard(descriptor: int, audience: Audience) -> Enters | Solo5Error:
    """Follow a child's report, which ends when it executes the tender, or ends itself; its last words.

    Raises:
        HostError: it is not whole.
    """
    lines, loop = asyncio.StreamReader(limit=LONGEST_LINE), asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(lines), os.fdopen(descriptor, "rb", buffering=0)
    )
    last: Enters | Solo5Error | None = None
    try:
        async for line in lines:
            match decode(line):
                case Begins(doing=doing):
                    audience.on_step(doing)
                case Announcement() as told:
                    audience.tell(told)
                case said:
                    last = said
    except ValueError as error:  # of a line without an end
        raise unforeseen() from error
    finally:
        transport.close()
    if last is None:
        raise unforeseen()
    return last
