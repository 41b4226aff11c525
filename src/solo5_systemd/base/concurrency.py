"""Concurrency in one event loop: gathered reads, a lock for each key, a thread, retries, child processes."""

import asyncio
import math
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import Any, Generic, ParamSpec, TypeVar
from weakref import WeakValueDictionary

P = ParamSpec("P")
T = TypeVar("T")


def begin(group: asyncio.TaskGroup, coroutine: Coroutine[Any, Any, T]) -> "asyncio.Task[T] | None":
    """Begin a task of a group, for a callback of the event loop; None: the group ends, as after a task's error."""
    try:
        return group.create_task(coroutine)
    except RuntimeError:
        coroutine.close()
        return None


async def gather(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Await all coroutines concurrently and return their results in order.

    Unlike `asyncio.gather`, no other one is running any more when the first error is raised; unlike
    `asyncio.TaskGroup`, that error is raised itself, not in a group.

    Raises:
        Exception: the first error, after the others were cancelled and have ended.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in coroutines]
    except BaseExceptionGroup as errors:
        first = errors.exceptions[0]
    else:
        return [task.result() for task in tasks]
    raise first  # here, so that its own cause and context stay


K = TypeVar("K", bound=Hashable)


class KeyedLocks(Generic[K]):
    """The locks of an event loop, used as `async with locks[key]`; a lock exists while it is held or waited for."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[K, asyncio.Lock] = WeakValueDictionary()

    def __getitem__(self, key: K) -> asyncio.Lock:
        """Return the lock of a key; the caller's `async with` keeps it alive."""
        return self._locks.setdefault(key, asyncio.Lock())

    def __iter__(self) -> Iterator[K]:
        """Iterate over the keys whose lock is held or waited for."""
        return iter(tuple(self._locks))


class SerialThread:
    """A thread in which functions run one after the other."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, name)

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function in the thread and return its result."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, lambda: function(*args, **kwargs))


E = TypeVar("E", bound=Exception)


async def retry(
    call: Callable[[], Awaitable[T]],
    errors: type[E] | tuple[type[E], ...],
    *,
    interval_s: float,
    timeout_s: float = math.inf,
    attempts: float = math.inf,
    transient: Callable[[E], bool] = lambda _: True,
    on_failure: Callable[[E], None] = lambda _: None,
) -> T:
    """Call until a call succeeds, and return its result.

    Args:
        call: made at least once.
        errors: the classes of errors after which the call is repeated.
        interval_s: seconds between the end of a call and the next one.
        timeout_s: seconds from now, after which a failed call is the last one. A call that hangs is not ended.
        attempts: the maximum number of calls.
        transient: returns whether the call is repeated after an error of these classes.
        on_failure: called with the error before each repetition, such as to log it.

    Raises:
        E: the error of the last call.
    """
    now = asyncio.get_running_loop().time
    end = now() + timeout_s
    count = 0
    while True:
        count += 1
        try:
            return await call()
        except errors as error:
            if count >= attempts or now() >= end or not transient(error):
                raise
            on_failure(error)
        await asyncio.sleep(interval_s)


@asynccontextmanager
async def reaped(process: Process) -> AsyncIterator[Process]:
    """Yield a child process; kill it if it is running at the end of the block, and reap it."""
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
