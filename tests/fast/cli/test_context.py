"""Commands without an event loop."""

import asyncio

import pytest

from solo5_systemd.base.errors import HostError
from solo5_systemd.cli.context import finished


async def double(number: int) -> int:
    if number < 0:
        raise HostError("less than zero.")
    return 2 * number


async def sums() -> int:
    return await double(1) + await double(2)


def test_a_coroutine_that_waits_for_nothing_needs_no_event_loop() -> None:
    assert finished(sums()) == 6
    with pytest.raises(HostError, match="less than zero"):
        finished(double(-1))


def test_a_coroutine_that_waits_is_refused_and_closed() -> None:
    closed: list[bool] = []

    async def waiting() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            closed.append(True)

    with pytest.raises(RuntimeError, match="waits for an event loop"):
        finished(waiting())
    assert closed == [True]
