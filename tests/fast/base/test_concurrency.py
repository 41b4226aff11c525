"""Gathered reads, a lock for each key, retries, child processes that are reaped, work in several processes."""

import asyncio
import errno
import os
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support.fakes.kernel import failing

from solo5_systemd.base import concurrency
from solo5_systemd.base.concurrency import Budget, KeyedLocks, begin, gather, in_processes, reaped, retry


async def wait(ended: list[str]) -> None:
    """Wait until cancelled, and record the end."""
    try:
        await asyncio.Event().wait()
    finally:
        ended.append("wait")


async def test_no_task_begins_in_a_group_that_ends() -> None:
    ran: list[str] = []

    async def work(name: str) -> None:
        ran.append(name)

    async def fail() -> None:
        raise ValueError("the bus is gone")

    async def serve() -> None:
        async with asyncio.TaskGroup() as group:
            begin(group, work("before"))
            group.create_task(fail()).add_done_callback(lambda _: ran.append(f"{begin(group, work('after'))}"))
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup):
        await serve()
    assert ran == ["before", "None"]


async def test_results_are_in_order() -> None:
    async def after(turns: int) -> int:
        for _ in range(turns):
            await asyncio.sleep(0)
        return turns

    assert await gather(map(after, (3, 1, 2))) == [3, 1, 2]
    assert await gather(map(after, ())) == []


async def test_no_coroutine_runs_on_after_an_error() -> None:
    ended: list[str] = []

    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("first")

    with pytest.raises(ValueError, match="first"):
        await gather((wait(ended), fail(), wait(ended)))
    assert ended == ["wait", "wait"]


async def test_a_cancellation_ends_all() -> None:
    ended: list[str] = []

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await gather(wait(ended) for _ in range(2))
    assert ended == ["wait", "wait"]


async def test_operations_on_one_key_are_serialized_and_those_on_another_are_not() -> None:
    locks = KeyedLocks[str]()
    events: list[str] = []
    release, other = asyncio.Event(), asyncio.Event()

    async def operate(key: str, name: str) -> None:
        async with locks[key]:
            events.append(f"{name} begins")
            await release.wait() if key == "a" else other.set()
            events.append(f"{name} ends")

    async with asyncio.TaskGroup() as group:
        for key, name in (("a", "first"), ("a", "second"), ("b", "other")):
            group.create_task(operate(key, name))
        await other.wait()
        assert events == ["first begins", "other begins", "other ends"]
        assert list(locks) == ["a"]
        release.set()
    assert events[3:] == ["first ends", "second begins", "second ends"]
    assert list(locks) == []


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
@pytest.mark.parametrize(
    ("limits", "expected"),
    [({"timeout_s": 0}, 1), ({"timeout_s": 10}, 3), ({"timeout_s": 11}, 4), ({"attempts": 3}, 3)],
)
async def test_the_error_of_the_last_attempt_or_the_first_after_the_timeout_is_raised(
    limits: dict[str, Any], expected: int
) -> None:
    _, call = calls(*(OSError(str(number)) for number in range(1, 9)))
    failures: list[str] = []
    with pytest.raises(OSError, match=str(expected)):
        await retry(call, OSError, interval_s=5, on_failure=lambda error: failures.append(str(error)), **limits)
    assert failures == [str(number) for number in range(1, expected)]


async def child(*words: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(*words)


async def test_a_child_that_has_ended_keeps_its_exit_status() -> None:
    async with reaped(await child("sh", "-c", "exit 3")) as process:
        await process.wait()
    assert process.returncode == 3


async def test_a_cancelled_block_leaves_no_child() -> None:
    started: asyncio.Future[asyncio.subprocess.Process] = asyncio.get_running_loop().create_future()

    async def use() -> None:
        async with reaped(await child("sleep", "600")) as process:
            started.set_result(process)
            await process.wait()

    using = asyncio.ensure_future(use())
    process = await started
    using.cancel()
    with pytest.raises(asyncio.CancelledError):
        await using
    assert process.returncode == -signal.SIGKILL


def _of(numbers: Sequence[int]) -> tuple[Sequence[int], int]:
    return numbers, os.getpid()


@pytest.mark.parametrize("count", [0, 1, 2, 7, 100])
def test_the_parts_have_all_items_in_order(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(3))
    found = in_processes(_of, range(count), 1)
    assert [number for part, _ in found for number in part] == list(range(count))
    assert len({process for _, process in found}) == len(found) == max(1, min(3, count))
    assert found[0][1] == os.getpid()


def test_few_items_start_no_process_and_a_result_is_larger_than_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(3))
    assert in_processes(_of, range(9), 10) == [(range(9), os.getpid())]
    assert in_processes(lambda part: "x" * 10**6, range(2), 1) == ["x" * 10**6] * 2


@pytest.mark.parametrize("failing", [0, 1])
def test_a_part_that_fails_is_an_error_and_no_child_remains(failing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(2))

    def work(part: Sequence[int]) -> None:
        if failing in part:
            raise ValueError("this one")

    with pytest.raises(ValueError, match="this one"):
        in_processes(work, range(2), 1)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_the_part_of_a_child_that_is_killed_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(3))
    own = os.getpid()

    def work(part: Sequence[int]) -> tuple[Sequence[int], int]:
        if 1 in part and os.getpid() != own:
            os.kill(os.getpid(), signal.SIGKILL)
        return _of(part)

    (first, _), second, (third, other) = in_processes(work, range(3), 1)
    assert (first, second, third) == (range(1), (range(1, 2), own), range(2, 3))
    assert other != own


@pytest.mark.parametrize("error", [errno.EAGAIN, errno.ENOMEM])
def test_without_a_further_process_all_is_done_here(monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(3))
    opened = [*Path("/proc/self/fd").iterdir()]
    monkeypatch.setattr(os, "fork", failing(error))
    assert in_processes(_of, range(3), 1) == [(range(each, each + 1), os.getpid()) for each in range(3)]
    assert [*Path("/proc/self/fd").iterdir()] == opened


@pytest.mark.parametrize(("quick_s", "is_counted"), [(60.0, False), (0.0, True)])
def test_a_quick_call_does_not_use_up_a_budget(
    monkeypatch: pytest.MonkeyPatch, quick_s: float, is_counted: bool
) -> None:
    monkeypatch.setattr(concurrency, "_QUICK_S", quick_s)
    budget = Budget(60.0)
    assert [budget.within(lambda: "done", "late") for _ in range(3)] == ["done"] * 3
    assert (budget.left_s < 60.0) is is_counted
