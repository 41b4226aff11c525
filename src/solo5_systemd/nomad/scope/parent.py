"""The tenders of scopes, which are child processes of the driver: only it gets their exit status.

A later driver process finds such a task by its unit, and can stop and measure it, but its outcome is unknown.
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
from solo5_systemd.nomad.events.messages import TaskEvent
from solo5_systemd.nomad.events.start_progress import ProgressSink
from solo5_systemd.nomad.process import restore_nofile_limit
from solo5_systemd.nomad.scope.protocol import ScopeEntered, StepBegun, decode, no_report
from solo5_systemd.settings import Settings
from solo5_systemd.workload import Workload

if TYPE_CHECKING:
    from solo5_systemd.engine.runtime import Runtime

CHILD = "solo5_systemd.nomad.scope.child"
REPORT_LINE_MAX = 1 << 16
"""Bytes of a line of the report. The addresses of 63 NICs, the most that a manifest has, take a third of it."""


@dataclass(frozen=True, kw_only=True)
class ScopeChildren:
    """The child processes, by task."""

    children: dict[TaskName, Process] = field(default_factory=dict)

    async def start(
        self, engine: "Runtime", settings: Settings, workload: Workload, rule: Rule | None, sink: ProgressSink
    ) -> Started:
        """Start a child that enters the task's scope and executes the tender.

        Args:
            engine: opens the console, and undoes a failed start.
            settings: the driver's settings.
            workload: the task.
            rule: the job's `ready` rule, checked against the manifest.
            sink: the receiver of the child's progress.

        Raises:
            Solo5Error: the start failed, and is undone.
        """
        since = time.time_ns() // 1000
        reading, writing = os.pipe2(os.O_CLOEXEC)
        try:
            stdin = pickle.dumps((settings, workload, rule))
            child = await _spawn(engine, settings.log_namespace, workload, stdin, writing)
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)  # only the child's copy may be left, or there would be no end of file
        try:
            last = await _read_report(reading, sink)
            reservation = await engine.backends.networks.reservation(workload.name)
        except BaseException:
            await asyncio.shield(_undo(engine, workload.name, child))
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
        """Wait for a child, and return its exit status, negative for a signal; None: the task has no child here."""
        child = self.children.get(name)
        return None if child is None else await child.wait()

    def forget(self, name: TaskName) -> None:
        """Drop the child of a removed task."""
        self.children.pop(name, None)


async def _undo(engine: "Runtime", name: TaskName, child: Process) -> None:
    """Kill a child, which may already be the tender, and remove what it has made."""
    with suppress(ProcessLookupError):
        child.kill()
    await child.wait()
    with suppress(Solo5Error):  # the first error is the one to raise
        await engine.discard(name)


async def _spawn(engine: "Runtime", log_namespace: str, workload: Workload, stdin: bytes, report: int) -> Process:
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
    assert child.stdin is not None  # noqa: S101 - a pipe was requested
    with suppress(ProcessLookupError):
        restore_nofile_limit(child.pid)  # before it has its input, hence before it executes the tender
    child.stdin.write(stdin)
    child.stdin.close()
    return child


async def _read_report(descriptor: int, sink: ProgressSink) -> ScopeEntered | Solo5Error:
    """Read a child's report up to end of file, which is the tender's execution or the child's end; return the result.

    Raises:
        HostError: the report is malformed or incomplete.
    """
    lines, loop = asyncio.StreamReader(limit=REPORT_LINE_MAX), asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(lines), os.fdopen(descriptor, "rb", buffering=0)
    )
    last: ScopeEntered | Solo5Error | None = None
    try:
        async for line in lines:
            match decode(line):
                case StepBegun(doing=doing):
                    sink.on_step(doing)
                case TaskEvent() as event:
                    sink.publish(event)
                case result:
                    last = result
    except ValueError as error:  # the line exceeds REPORT_LINE_MAX
        raise no_report() from error
    finally:
        transport.close()
    if last is None:
        raise no_report()
    return last
