"""The wait for a guest that was started."""

import asyncio

import pytest
from tests.support.fakes.tasks import running

from solo5_systemd.engine.ready import first_of


async def test_a_guest_without_a_condition_has_to_run_for_a_second() -> None:
    never: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    with pytest.raises(TimeoutError, match="^it has to run for 1 s$"):
        await first_of(running().state, None, 0, never)
