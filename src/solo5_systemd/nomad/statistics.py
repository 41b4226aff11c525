"""Statistics of one task, sample by sample, until it has ended."""

import asyncio
from collections.abc import AsyncIterator

from google.protobuf.timestamp_pb2 import Timestamp

from solo5_systemd.cgroup.usage import Usage
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.nomad.session import Session
from solo5_systemd.nomad.tasks import Known
from solo5_systemd.nomad.usage import resource_usage


async def samples(session: Session, known: Known, interval: float, mhz: float) -> AsyncIterator[wire.TaskStatsResponse]:
    """A sample at once and one for each interval (seconds): files of the cgroup are read, nothing else is asked.

    Args:
        session: the engine.
        known: the task.
        interval: between two samples.
        mhz: of one core, 0 for unknown.
    """
    before: Usage | None = None
    while not known.end.done():
        now = await (await session.engine()).usage_of(known.control_group)
        if now is not None:
            yield _response(known.config.id, before, now, mhz)
            before = now
        await asyncio.wait((known.end,), timeout=interval)


def _response(task_id: str, before: Usage | None, now: Usage, mhz: float) -> wire.TaskStatsResponse:
    stamp = Timestamp()
    stamp.GetCurrentTime()
    return wire.TaskStatsResponse(
        stats=wire.TaskStats(id=task_id, timestamp=stamp, agg_resource_usage=resource_usage(before, now, mhz))
    )
