"""Read the journal through journalctl(1)."""

import asyncio
import os
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress

from solo5_systemd.errors import DependencyError, HostError
from solo5_systemd.journal.export import Entry, ExportError, Reader
from solo5_systemd.journal.journald import note_hung, open_stream
from solo5_systemd.journal.sync import synchronize
from solo5_systemd.names import TaskName, task_of_unit
from solo5_systemd.processes import reaped
from solo5_systemd.unit.exit_messages import ExitMessages
from solo5_systemd.unit.log_fields import STDERR_PRIORITY, STDOUT_PRIORITY
from solo5_systemd.unit.state import UnitState

JOURNALCTL = "/usr/bin/journalctl"
CHUNK = 1 << 16

NOT_LOADED = 127
"""The exit status of a program that ld.so(8) could not load."""

COMPLAINTS = 10
"""Lines of a failed unit that are looked at."""

EXPLAIN_NOTHING = {
    "7d4958e842da4a758f6c1cdc7b36dcc5",  # a unit is starting
    "be02cf6855d2428ba40df7e9d022f03d",  # it did not
    "d9b373ed55a64feb8242e02dbe79a49c",  # it failed with result exit-code
}
"""Messages of PID 1 that come with every failed start (systemd's catalog, `journalctl --catalog`)."""


class Journal:
    """Fulfils `backends.Console`; `namespace` returns that of the consoles of new tasks."""

    def __init__(self, namespace: Callable[[], str]) -> None:
        self._namespace = namespace

    def namespace(self) -> str:
        return self._namespace()

    async def open_stdout(self, unit: str, namespace: str) -> int:
        return await _open_stream(unit, STDOUT_PRIORITY, namespace)

    async def open_stderr(self, unit: str, namespace: str) -> int:
        return await _open_stream(unit, STDERR_PRIORITY, namespace)

    async def entries(
        self, state: UnitState, *, follow: bool, last: int | None = None, after: str | None = None
    ) -> AsyncGenerator[Entry, None]:
        """Lines of one invocation's processes, oldest first; PID 1's own remarks on the unit are not among them.

        They are found by the unit and the time of its start, not by _SYSTEMD_INVOCATION_ID=: journald looks that up
        when it comes to a line, and the last lines of a task that has just ended may then be without it.
        """
        arguments = [*_in(state.log_namespace), f"_SYSTEMD_UNIT={state.unit}", "_TRANSPORT=stdout"]
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
        """Why a unit did not start: what PID 1 found out, and after it what the unit's own processes wrote."""
        await self.sync(task_of_unit(unit) or TaskName(unit), namespace)
        lines = ["--boot", f"--lines={COMPLAINTS}"]
        by_systemd = [e async for e in _read([*lines, f"UNIT={unit}", "_PID=1"]) if _explains(e)]
        its_own = [*_in(namespace), *lines, f"_SYSTEMD_UNIT={unit}", "_TRANSPORT=stdout"]
        by_processes = [e async for e in _read(its_own)]
        return [e.message.decode("utf-8", "replace").strip() for e in (*by_systemd, *by_processes)]

    async def exit_messages(self, state: UnitState) -> ExitMessages:
        from solo5_systemd.journal.exit_messages import last_words  # most tasks' ends need none

        with suppress(HostError):
            return await asyncio.to_thread(last_words, state)
        return ExitMessages()

    async def log_hung(self, state: UnitState) -> None:
        note_hung(state)

    async def sync(self, task: TaskName, namespace: str) -> None:
        await synchronize(task, namespace)


def _in(namespace: str) -> list[str]:
    """Return journalctl's options for a namespace."""
    return [f"--namespace={namespace}"] if namespace else []


async def _open_stream(unit: str, priority: int, namespace: str) -> int:
    """In a thread: a journald that does not answer must hold up nobody else."""
    return await asyncio.to_thread(open_stream, str(task_of_unit(unit) or unit), unit, priority, namespace)


def _explains(entry: Entry) -> bool:
    return entry.fields.get("MESSAGE_ID", b"").decode("ascii", "replace") not in EXPLAIN_NOTHING


async def _read(arguments: Sequence[str]) -> AsyncGenerator[Entry, None]:
    reader = Reader()
    async with _running(["--output=export", "--no-pager", "--quiet", *arguments]) as (process, errors):
        assert process.stdout is not None  # noqa: S101 - it was asked for
        try:
            while data := await process.stdout.read(CHUNK):
                for entry in reader.feed(data):
                    yield entry
        except ExportError as error:
            raise HostError(f"the journal cannot be read: {JOURNALCTL} printed {error}.") from error
        if await process.wait() == NOT_LOADED:
            raise _not_loaded(os.pread(errors, CHUNK, 0).decode("utf-8", "replace"))


def _not_loaded(text: str) -> HostError:
    """The error of a journalctl that lacks one of its libraries."""
    from solo5_systemd.dependencies import missing_library

    return missing_library(text) or HostError(f"the journal cannot be read: {JOURNALCTL} printed {text.strip()!r}.")


@asynccontextmanager
async def _running(arguments: Sequence[str]) -> AsyncGenerator[tuple[Process, int], None]:
    """journalctl, ended and reaped whatever happens to its reader, and a file with what it writes to stderr.

    It has a process group of its own: a terminal's Ctrl-C stops the task, whose last lines are still to be read.
    """
    errors = os.memfd_create("journalctl", os.MFD_CLOEXEC)
    try:
        async with _process(arguments, errors) as process:
            yield process, errors
    finally:
        os.close(errors)


@asynccontextmanager
async def _process(arguments: Sequence[str], errors: int) -> AsyncGenerator[Process, None]:
    try:
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
