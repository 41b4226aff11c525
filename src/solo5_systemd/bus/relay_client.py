"""Our console relay, as its callers see it."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

from solo5_systemd.bus.activation import Service
from solo5_systemd.bus.connection import Connection, RemoteError
from solo5_systemd.bus.service_signals import notices
from solo5_systemd.decode import Fields, json_document
from solo5_systemd.errors import Solo5Error
from solo5_systemd.journal.lines import DroppedLines
from solo5_systemd.names import TaskName, task_name

STATE = Path("/run/solo5/relay")
"""Where the relay keeps a file for each task that it forwards."""

_NAME = "org.solo5.Relay1"
_PATH = "/org/solo5/Relay1"
_DIED = "org.freedesktop.DBus.Error.NoReply"
"""What the bus answers in the place of a service that left it during a call."""

_ATTEMPTS = 3

_DRAIN_INTERVAL = 0.05
"""Seconds between two calls of Drain for one task."""

_DRAIN_TIMEOUT = 1.0
"""Seconds that one `drain` waits for a FIFO to be read."""


class Relay:
    """The relay behind one bus connection; fulfils `backends.Relay`.

    Args:
        connection: the system bus.
        sync: waits until the journal, which a namespace may have, has written all that was sent of a task before. The
            relay cannot do that itself: journald synchronizes for root alone.
        state: where the relay keeps its files.
    """

    def __init__(
        self, connection: Connection, sync: Callable[[TaskName, str], Awaitable[None]], state: Path = STATE
    ) -> None:
        self._connection = connection
        self._service = Service(unit="solo5-relay", name=_NAME, connection=connection)
        self._sync = sync
        self._state = state

    async def forward(
        self, task: TaskName, unit: str, since: int, stdout: int, stderr: int, *, namespace: str = ""
    ) -> None:
        body = [task, unit, since, 0, 1]
        if namespace:
            await self._call("ForwardFrom", "sssthh", [namespace, *body], (stdout, stderr))
        else:
            await self._call("Forward", "ssthh", body, (stdout, stderr))

    async def has_record(self, task: TaskName) -> bool:
        return await asyncio.to_thread((self._state / f"{task}.json").exists)

    async def records(self) -> Mapping[TaskName, float]:
        return await asyncio.to_thread(lambda: dict(_records(self._state)))

    async def open_tasks(self) -> frozenset[TaskName]:
        if not await asyncio.to_thread(lambda: any(self._state.glob("*.json"))):
            return frozenset()
        [tasks] = await self._call("List", "", [])
        return frozenset(map(task_name, tasks))

    async def drain(self, task: TaskName) -> int | None:
        namespace = await asyncio.to_thread(_namespace, self._state / f"{task}.json")
        if namespace is None:
            return None  # and the relay need not be started for it
        await self._sync(task, namespace)
        until = time.monotonic() + _DRAIN_TIMEOUT
        while await self._call("Drain", "s", [task]) == [False]:
            if time.monotonic() >= until:
                return await asyncio.to_thread(_changed, self._state / f"{task}.json")
            await asyncio.sleep(_DRAIN_INTERVAL)  # a call that waits in the relay would hold back those for other tasks
        return None

    async def gaps(self) -> AsyncGenerator[DroppedLines, None]:
        async with aclosing(notices(self._connection, _NAME, "Gap")) as told:
            async for task, lines in told:
                yield DroppedLines(task=task_name(task), lines=lines)

    async def _call(self, member: str, signature: str, body: list[object], fds: tuple[int, ...] = ()) -> list[Any]:
        """Call; again where the relay dies meanwhile, since every call may be repeated."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return await self._service.answer(_PATH, member, signature, body, fds)
            except RemoteError as error:
                if error.name != _DIED or attempt == _ATTEMPTS:
                    raise await self._service.unanswered(error) from error
        raise AssertionError  # the last attempt has answered or raised


def _records(directory: Path) -> Iterator[tuple[TaskName, float]]:
    for path in directory.glob("*.json"):
        if (age := _age(path)) is not None:
            yield TaskName(path.stem), age


def _age(record: Path) -> float | None:
    """Seconds since the relay has delivered something of it; None where it is gone, and all delivered."""
    changed = _changed(record)
    return None if changed is None else time.time() - changed / 1e9


def _namespace(record: Path) -> str | None:
    """Return the journal namespace of a record's lines; empty: the host's journal; None where there is no record."""
    try:
        return Fields(json_document(record.read_bytes(), "the record")).text("namespace", "")
    except FileNotFoundError:
        return None
    except (OSError, Solo5Error):
        return ""  # written by an earlier version, or damaged: the relay will tell


def _changed(record: Path) -> int | None:
    """Return when the relay last delivered something of it, in nanoseconds since the epoch; None where it is gone."""
    with suppress(FileNotFoundError):
        return record.stat().st_mtime_ns
    return None
