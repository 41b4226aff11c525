"""Concurrency in one event loop: gathered reads, a lock for each key, a thread, retries, child processes.

And for a program that others wait for: a budget of time for calls that may hang, and work in several processes.
"""

import asyncio
import math
import os
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import asynccontextmanager, suppress
from functools import wraps
from threading import Thread
from typing import Any, Generic, ParamSpec, TypeVar
from weakref import WeakValueDictionary

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")

_QUICK_S = 0.05
"""Seconds in which a file is read that does not hang, also on a machine with other load."""


def begin(group: asyncio.TaskGroup, coroutine: Coroutine[Any, Any, T]) -> "asyncio.Task[T] | None":
    """Begin a task of a group, for a callback of the event loop; None: the group ends, as after a task's error."""
    try:
        return group.create_task(coroutine)
    except RuntimeError:
        coroutine.close()  # else Python warns that it was never awaited
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


@asynccontextmanager
async def background(coroutine: Coroutine[Any, Any, T]) -> AsyncIterator["asyncio.Task[T]"]:
    """Run a coroutine during a block; at the end of the block cancel it, and wait for its end."""
    task = asyncio.ensure_future(coroutine)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


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


def in_thread(function: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Have a function run in a thread of the event loop: its system calls may wait for a disk."""

    @wraps(function)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.to_thread(function, *args, **kwargs)

    return call


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


class Budget:
    """The time for which a program waits for what may hang, in all; a quick call is not counted."""

    def __init__(self, budget_s: float) -> None:
        self.left_s = budget_s

    def within(self, call: Callable[[], T], late: R) -> T | R:
        """Return what a call returns in a thread; `late` if it has not returned when the budget is used up.

        The thread ends with the process.

        Raises:
            Exception: of the call.
        """
        if self.left_s <= 0:
            return late
        outcome: Future[T] = Future()

        def settle() -> None:
            try:
                outcome.set_result(call())
            except BaseException as error:  # noqa: BLE001 - raised where the result is read
                outcome.set_exception(error)

        begun = time.monotonic()
        Thread(target=settle, daemon=True).start()
        try:
            return outcome.result(timeout=self.left_s)
        except FutureTimeoutError:
            return late
        finally:  # also after an error: no child is left behind
            took = time.monotonic() - begun
            self.left_s -= took if took > _QUICK_S else 0.0


def in_processes(work: Callable[[Sequence[T]], R], items: Sequence[T], least: int) -> list[R]:
    """Call a function with the parts of a list at the same time, and return its results in order.

    The first part is this process's own, each other one a forked child's: what the function changes in memory is lost
    there. A part whose child cannot be forked, fails or is killed, is done here in the end. The caller has no threads.

    Args:
        work: returns what can be pickled; may be called again for what a child has done in part.
        items: are split into as many parts as there are processors, in order.
        least: items for which a process is worth its start.
    """
    import pickle  # imported here for startup time: other users of this module do without

    count = max(1, min(len(os.sched_getaffinity(0)), len(items) // least))
    size = max(1, -(-len(items) // count))
    first, *others = [items[begin : begin + size] for begin in range(0, max(1, len(items)), size)]
    children = [_started(lambda part=part: pickle.dumps(work(part))) for part in others]  # type: ignore[misc]
    try:
        results = [work(first)]
    finally:  # a child never returns to the code of its parent
        found = [_ended(*child) if child else None for child in children]
    for part, content in zip(others, found, strict=True):
        results.append(work(part) if content is None else pickle.loads(content))  # noqa: S301 - ours
    return results


def _started(work: Callable[[], bytes]) -> tuple[int, int] | None:
    """Return a child's PID and the pipe with what the function returns; None: no process can be started."""
    reads, writes = os.pipe()
    try:
        child = os.fork()
    except OSError:  # EAGAIN, ENOMEM
        os.close(reads)
        os.close(writes)
        return None
    if child:
        os.close(writes)
        return child, reads
    try:
        with os.fdopen(writes, "wb") as pipe:
            pipe.write(work())
        os._exit(0)
    finally:
        os._exit(1)


def _ended(child: int, reads: int) -> bytes | None:
    """Return what a child has written, once it has ended; None: it has not written all."""
    with os.fdopen(reads, "rb") as pipe:
        content = pipe.read()
    _, status = os.waitpid(child, 0)
    return None if status else content
