"""Runs a client in a child process: a call through sd-bus(3) holds the interpreter, which is the fake PID 1's, too."""

import asyncio
import os
import pickle
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from solo5_systemd.bus.blocking import BlockingBus

T = TypeVar("T")


async def in_child(work: Callable[[], T]) -> T:
    """Return what *work* returns in a child process, or raise what it raises."""
    result: T | Exception = await asyncio.to_thread(_result, work)
    if isinstance(result, Exception):
        raise result
    return result


async def with_bus(work: Callable[[BlockingBus], T]) -> T:
    """Do the same with a connection to the bus."""

    def connected() -> T:
        with closing(BlockingBus()) as bus:
            return work(bus)

    return await in_child(connected)


def _result(work: Callable[[], T]) -> T | Exception:
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        Path(f"/proc/self/fd/{theirs}").write_bytes(_pickled(work))
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(child, 0)
    assert status == 0
    result: T | Exception = pickle.loads(data)
    return result


def _pickled(work: Callable[[], T]) -> bytes:
    try:
        return pickle.dumps(work())
    except Exception as error:  # noqa: BLE001 - raised by the parent
        return pickle.dumps(error)
