"""A limit for calls that may hang: a program that others wait for goes on without their results."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from threading import Thread
from typing import TypeVar

T = TypeVar("T")
L = TypeVar("L")

_QUICK_S = 0.05
"""Seconds in which a file is read that does not hang, also on a machine with other load."""


class Budget:
    """The time for which a program waits for what may hang.

    Args:
        budget_s: seconds, in all; a quick call is not counted.
    """

    def __init__(self, budget_s: float) -> None:
        self.left_s = budget_s

    def within(self, call: Callable[[], T], late: L) -> T | L:
        """Return what a call returns in a thread; `late` if it has not returned when the budget is used up.

        The thread ends with the process.

        Raises:
            Exception: of the call.
        """
        if self.left_s <= 0:
            return late
        outcome: Future[T] = Future()
        begun = time.monotonic()
        Thread(target=_settle, args=(outcome, call), daemon=True).start()
        try:
            return outcome.result(timeout=self.left_s)
        except FutureTimeoutError:
            return late
        finally:
            took = time.monotonic() - begun
            self.left_s -= took if took > _QUICK_S else 0.0


def _settle(outcome: "Future[T]", call: Callable[[], T]) -> None:
    try:
        outcome.set_result(call())
    except BaseException as error:  # noqa: BLE001 - raised where the result is read
        outcome.set_exception(error)
