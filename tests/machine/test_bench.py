"""The benchmark's floor, which is measured seldom and has to follow the unit that a task gets."""

import asyncio

from tests.bench.floor import floor
from tests.machine.conftest import Machine


def test_the_floor_of_the_benchmark_starts_stops_and_leaves_nothing(machine: Machine) -> None:
    async def rounds() -> tuple[int, float]:
        async with floor() as least:
            times = await least.start(2)
            await least.drop()
            return len(times), await least.pairs(2, 2)

    started, seconds = asyncio.run(rounds())
    assert started == 2
    assert seconds > 0
