"""Work on a list in several processes: for a program that others wait for, and whose work is Python's own."""

import os
import pickle
import traceback
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")


def in_processes(work: Callable[[Sequence[T]], R], items: Sequence[T], least: int) -> list[R]:
    """Call a function with the parts of a list at the same time, and return its results in order.

    The first part is this process's own, each other one a forked child's: what the function changes in memory is lost
    there. The caller has no threads.

    Args:
        work: returns what can be pickled.
        items: are split into as many parts as there are processors, in order.
        least: items for which a process is worth its start.

    Raises:
        ChildProcessError: the function has raised an exception in a child, whose traceback is the message.
    """
    count = max(1, min(len(os.sched_getaffinity(0)), len(items) // least))
    size = -(-len(items) // count)
    first, *others = [items[begin : begin + size] for begin in range(0, max(1, len(items)), max(1, size))]
    children = [_started(work, part) for part in others]
    try:
        results = [work(first)]
    finally:
        found = [_ended(*child) for child in children]
    for result, failure in found:
        if failure:
            raise ChildProcessError(failure)
        results.append(result)
    return results


def _started(work: Callable[[Sequence[T]], R], part: Sequence[T]) -> tuple[int, int]:
    """Return a child's PID and the pipe with its pickled result and its traceback."""
    reads, writes = os.pipe()
    child = os.fork()
    if child:
        os.close(writes)
        return child, reads
    try:
        try:
            content = pickle.dumps((work(part), ""))
        except BaseException:  # noqa: BLE001 - the parent raises it
            content = pickle.dumps((None, traceback.format_exc()))
        with os.fdopen(writes, "wb") as pipe:
            pipe.write(content)
    finally:
        os._exit(0)


def _ended(child: int, reads: int) -> tuple[Any, str]:
    """Return what a child has written, once it has ended."""
    with os.fdopen(reads, "rb") as pipe:
        content = pipe.read()
    os.waitpid(child, 0)
    result: tuple[Any, str] = pickle.loads(content) if content else (None, "A process was killed.")  # noqa: S301 - ours
    return result
