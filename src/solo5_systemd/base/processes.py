"""Work on a list in several processes: for a program that others wait for, and whose work is Python's own."""

import os
import pickle
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import TypeVar

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
        ChildProcessError: the function has raised an exception in a child, which has printed it to stderr.
    """
    count = max(1, min(len(os.sched_getaffinity(0)), len(items) // least))
    size = -(-len(items) // count)
    first, *others = [items[begin : begin + size] for begin in range(0, max(1, len(items)), max(1, size))]
    children = [_started(work, part) for part in others]
    try:
        results = [work(first)]
    finally:
        contents = [_ended(*child) for child in children]
    if not all(contents):
        raise ChildProcessError(f"{contents.count(b'')} of {len(children)} processes have failed.")
    return [*results, *map(pickle.loads, contents)]


def _started(work: Callable[[Sequence[T]], R], part: Sequence[T]) -> tuple[int, int]:
    """Return a child's PID and the pipe with its pickled result, which is empty if it has failed."""
    reads, writes = os.pipe()
    child = os.fork()
    if child:
        os.close(writes)
        return child, reads
    try:
        with os.fdopen(writes, "wb") as pipe:
            pipe.write(pickle.dumps(work(part)))
    except BaseException:  # noqa: BLE001 - the parent raises one
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def _ended(child: int, reads: int) -> bytes:
    """Return what a child has written, once it has ended."""
    with os.fdopen(reads, "rb") as pipe:
        content = pipe.read()
    return content if os.waitpid(child, 0)[1] == 0 else b""
