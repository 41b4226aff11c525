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
    there. A part whose child cannot be forked, or is killed, is done here in the end. The caller has no threads.

    Args:
        work: returns what can be pickled; may be called again for what a child has done in part.
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
        found = [_ended(*child) if child else None for child in children]
    for part, result in zip(others, found, strict=True):
        if result is None:
            results.append(work(part))
        elif result[1]:
            raise ChildProcessError(result[1])
        else:
            results.append(result[0])
    return results


def _started(work: Callable[[Sequence[T]], R], part: Sequence[T]) -> tuple[int, int] | None:
    """Return a child's PID and the pipe with its pickled result and its traceback; None: no process can be started."""
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
        try:
            content = pickle.dumps((work(part), ""))
        except BaseException:  # noqa: BLE001 - the parent raises it
            content = pickle.dumps((None, traceback.format_exc()))
        with os.fdopen(writes, "wb") as pipe:
            pipe.write(content)
        os._exit(0)
    finally:
        os._exit(1)


def _ended(child: int, reads: int) -> tuple[Any, str] | None:
    """Return what a child has written, once it has ended; None: it has not written all."""
    with os.fdopen(reads, "rb") as pipe:
        content = pipe.read()
    _, status = os.waitpid(child, 0)
    result: tuple[Any, str] | None = None if status else pickle.loads(content)  # noqa: S301 - ours
    return result
