"""What is compared: an interface for whatever starts and stops tasks."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

ADDRESS = "192.0.2.1"
"""Of the machine, on its loopback interface; `driver-client` has the same."""

AT_ONCE = 16


class MissingError(Exception):
    """A peer cannot be measured: one sentence with what is missing."""


class Subject(Protocol):
    """Tasks of one peer. Times are in milliseconds."""

    async def start(self, until: str = "") -> float:
        """Start a task; `port`: until it answers at its published port."""

    async def stop(self) -> float:
        """Stop and remove the task that was started last."""

    async def pairs(self, count: int) -> float:
        """Start, stop and remove `count` tasks, `AT_ONCE` at a time; return the seconds of all of them."""

    async def grow(self, count: int) -> None:
        """Start tasks until `count` run beside what is measured."""

    async def clear(self) -> None:
        """Stop and remove those."""

    def harness(self) -> set[int]:
        """Processes of the benchmark's own, beside the one that calls this."""


@dataclass(frozen=True, kw_only=True)
class Peer:
    """One row of the comparison.

    Attributes:
        caller: what gives the orders: a shell, or Nomad's code.
        prepare: done once; raises MissingError.
        opened: gives the peer without tasks.
    """

    name: str
    caller: str
    prepare: Callable[[], None]
    opened: Callable[[], AbstractAsyncContextManager[Subject]]
