"""A child is killed and reaped, in whatever way the block ends."""

import asyncio
import signal

import pytest

from solo5_systemd.concurrency.processes import reaped


async def child(*words: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(*words)


async def test_a_child_that_runs_on_is_killed_and_reaped() -> None:
    async with reaped(await child("sleep", "600")) as process:
        pass
    assert process.returncode == -signal.SIGKILL


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
