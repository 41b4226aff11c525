"""The consoles of tasks, read through journalctl(1)."""

import asyncio
import os
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress

from solo5_systemd.errors import DependencyError, HostError
from solo5_systemd.journal.export import Entry, ExportError, ExportParser
from solo5_systemd.journal.journald import log_hung, open_stream
from solo5_systemd.journal.sync import synchronize
from solo5_systemd.names import TaskName, task_of_unit
from solo5_systemd.processes import reaped
from solo5_systemd.unit.exit_messages import ExitMessages
from solo5_systemd.unit.log_fields import STDERR_PRIORITY, STDOUT_PRIORITY
from solo5_systemd.unit.state import UnitState

JOURNALCTL = "/usr/bin/journalctl"
CHUNK_SIZE = 1 << 16

EXIT_NOT_LOADED = 127
"""The exit status of a program that ld.so(8) could not load."""

FAILURE_LINES = 10
"""Lines of a failed unit to read."""

GENERIC_MESSAGE_IDS = {
    "7d4958e842da4a758f6c1cdc7b36dcc5",  # SD_MESSAGE_UNIT_STARTING
    "be02cf6855d2428ba40df7e9d022f03d",  # SD_MESSAGE_UNIT_FAILED
    "d9b373ed55a64feb8242e02dbe79a49c",  # SD_MESSAGE_UNIT_FAILURE_RESULT
}
"""Messages of PID 1 about every failed start, which have no reason (`journalctl --catalog`)."""


class Journal:
    """Implements `backends.Console`.

    Args:
        namespace: returns the journal namespace for the consoles of new tasks; empty: the host's journal.
    """

    def __init__(self, namespace: Callable[[], str]) -> None:
        self._namespace = namespace

    def namespace(self) -> str:
        """Return the journal namespace for the consoles of new tasks."""
        return self._namespace()

    async def open_stdout(self, unit: str, namespace: str) -> int:
        """Open a journal stream for a guest's console; the caller closes the descriptor."""
        return await _open_stream(unit, STDOUT_PRIORITY, namespace)

    async def open_stderr(self, unit: str, namespace: str) -> int:
        """Open a journal stream for a tender's stderr; the caller closes the descriptor."""
        return await _open_stream(unit, STDERR_PRIORITY, namespace)

    async def entries(
        self, state: UnitState, *, follow: bool, last: int | None = None, after: str | None = None
    ) -> AsyncGenerator[Entry, None]:
        """Yield the console lines of one run, oldest first; without PID 1's messages about the unit.

        They are selected by the unit and the run's start, not by _SYSTEMD_INVOCATION_ID=: journald looks that up when
        it processes a line, and the last lines of a unit that has just ended may be without it.
        """
        arguments = [*_namespace_options(state.log_namespace), f"_SYSTEMD_UNIT={state.unit}", "_TRANSPORT=stdout"]
        arguments.append(f"--lines={'all' if last is None else last}")
        if follow:
            arguments.append("--follow")
        if after is not None:
            arguments.append(f"--after-cursor={after}")
        elif last is None:
            arguments.append(f"--since=@{state.started // 1_000_000}")
        async with aclosing(_read(arguments)) as lines:
            async for entry in lines:
                if entry.realtime >= state.started:
                    yield entry

    async def failure_messages(self, unit: str, namespace: str) -> Sequence[str]:
        """Return why a unit failed to start: PID 1's messages, then the lines of the unit's processes."""
        await self.sync(task_of_unit(unit) or TaskName(unit), namespace)
        lines = ["--boot", f"--lines={FAILURE_LINES}"]
        by_systemd = [e async for e in _read([*lines, f"UNIT={unit}", "_PID=1"]) if _is_specific(e)]
        of_unit = [*_namespace_options(namespace), *lines, f"_SYSTEMD_UNIT={unit}", "_TRANSPORT=stdout"]
        by_processes = [e async for e in _read(of_unit)]
        return [e.message.decode("utf-8", "replace").strip() for e in (*by_systemd, *by_processes)]

    async def exit_messages(self, state: UnitState) -> ExitMessages:
        """Return the exit messages of a run; empty ones if the journal cannot be read."""
        # Imported here for startup time: most outcomes are known without the journal.
        from solo5_systemd.journal.exit_messages import read_exit_messages

        with suppress(HostError):
            return await asyncio.to_thread(read_exit_messages, state)
        return ExitMessages()

    async def log_hung(self, state: UnitState) -> None:
        """Log that the tender of a task hangs and is killed."""
        log_hung(state)

    async def sync(self, task: TaskName, namespace: str) -> None:
        """Wait until journald has written all lines that a task wrote before."""
        await synchronize(task, namespace)


def _namespace_options(namespace: str) -> list[str]:
    return [f"--namespace={namespace}"] if namespace else []


async def _open_stream(unit: str, priority: int, namespace: str) -> int:
    """Open a journal stream in a thread, since a journald that hangs would block the event loop."""
    return await asyncio.to_thread(open_stream, str(task_of_unit(unit) or unit), unit, priority, namespace)


def _is_specific(entry: Entry) -> bool:
    return entry.fields.get("MESSAGE_ID", b"").decode("ascii", "replace") not in GENERIC_MESSAGE_IDS


async def _read(arguments: Sequence[str]) -> AsyncGenerator[Entry, None]:
    parser = ExportParser()
    async with _running(["--output=export", "--no-pager", "--quiet", *arguments]) as (process, errors):
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        try:
            while data := await process.stdout.read(CHUNK_SIZE):
                for entry in parser.feed(data):
                    yield entry
        except ExportError as error:
            raise HostError(f"the journal cannot be read: {JOURNALCTL} printed {error}.") from error
        if await process.wait() == EXIT_NOT_LOADED:
            raise _not_loaded(os.pread(errors, CHUNK_SIZE, 0).decode("utf-8", "replace"))


def _not_loaded(stderr: str) -> HostError:
    """Return the error of a journalctl that could not be loaded because of a missing library."""
    from solo5_systemd.dependencies import missing_library

    return missing_library(stderr) or HostError(f"the journal cannot be read: {JOURNALCTL} printed {stderr.strip()!r}.")


@asynccontextmanager
async def _running(arguments: Sequence[str]) -> AsyncGenerator[tuple[Process, int], None]:
    """Run journalctl, terminated and reaped on exit; yield it and a memfd with its stderr."""
    errors = os.memfd_create("journalctl", os.MFD_CLOEXEC)
    try:
        async with _process(arguments, errors) as process:
            yield process, errors
    finally:
        os.close(errors)


@asynccontextmanager
async def _process(arguments: Sequence[str], errors: int) -> AsyncGenerator[Process, None]:
    try:
        # A process group of its own: Ctrl-C in a terminal stops the task, whose last lines have to be read afterwards.
        process = await asyncio.create_subprocess_exec(
            JOURNALCTL, *arguments, stdin=DEVNULL, stdout=PIPE, stderr=errors, process_group=0
        )
    except FileNotFoundError as error:
        from solo5_systemd.dependencies import advice

        sentence = f"the journal cannot be read: {JOURNALCTL}: {error.strerror}."
        raise DependencyError(sentence, advice(JOURNALCTL)) from error
    except OSError as error:
        raise HostError(f"the journal cannot be read: {JOURNALCTL}: {error.strerror}.") from error
    async with reaped(process):
        yield process
