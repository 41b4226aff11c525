"""Work in a thread of its own."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

_T = TypeVar("_T")


def begun(work: Callable[[], _T]) -> "Future[_T]":
    """Begin *work*; its result, or its failure, is the future's.

    The thread does not keep this process from ending, and programs that it runs end with it (`enclosure.UNDER_US`).
    """
    future: Future[_T] = Future()

    def do() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001  (raised again where the result is fetched)
            future.set_exception(error)

    threading.Thread(target=do, daemon=True).start()
    return future
