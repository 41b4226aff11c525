"""Retries of a call that fails for a reason which passes, such as a bus that reconnects."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
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
