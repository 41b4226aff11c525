"""A call is repeated at an interval, within its timeout and number, and only after the errors named."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest

from solo5_systemd.concurrency.retry import retry


def calls(*results: object) -> tuple[list[float], Callable[[], Awaitable[object]]]:
    """Return the times of calls, and a function that raises or returns the next result; the last one from then on."""
    left: Iterator[object] = iter(results)
    times: list[float] = []

    async def call() -> object:
        times.append(asyncio.get_running_loop().time())
        result = next(left, results[-1])
        if isinstance(result, Exception):
            raise result
        return result

    return times, call


@pytest.mark.leaps
async def test_a_result_ends_the_retries() -> None:
    times, call = calls(OSError(), OSError(), "done")
    failures: list[OSError] = []
    assert await retry(call, OSError, interval_s=5, on_failure=failures.append) == "done"
    assert [time - times[0] for time in times] == [0, 5, 10]
    assert len(failures) == 2


@pytest.mark.leaps
@pytest.mark.parametrize("error", [KeyError("other"), FileNotFoundError("not transient")])
async def test_another_error_is_raised_at_once(error: Exception) -> None:
    times, call = calls(OSError("first"), error, "done")
    failures: list[Exception] = []
    with pytest.raises(type(error), match=str(error)):
        await retry(
            call,
            (OSError, EOFError),
            interval_s=1,
            transient=lambda found: not isinstance(found, FileNotFoundError),
            on_failure=failures.append,
        )
    assert len(times) == 2
    assert [str(failure) for failure in failures] == ["first"]


@pytest.mark.leaps
@pytest.mark.parametrize(("timeout_s", "expected"), [(0, 1), (10, 3), (11, 4)])
async def test_the_error_of_the_first_call_after_the_timeout_is_raised(timeout_s: float, expected: int) -> None:
    times, call = calls(OSError())
    with pytest.raises(OSError):
        await retry(call, OSError, interval_s=5, timeout_s=timeout_s)
    assert len(times) == expected


@pytest.mark.leaps
async def test_the_error_of_the_last_attempt_is_raised() -> None:
    times, call = calls(OSError("first"), OSError("second"), OSError("third"))
    failures: list[OSError] = []
    with pytest.raises(OSError, match="third"):
        await retry(call, OSError, interval_s=0, attempts=3, on_failure=failures.append)
    assert len(times) == 3
    assert [str(failure) for failure in failures] == ["first", "second"]


@pytest.mark.leaps
async def test_a_cancellation_ends_the_retries() -> None:
    times, call = calls(OSError())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(7):
            await retry(call, OSError, interval_s=5)
    assert len(times) == 2
