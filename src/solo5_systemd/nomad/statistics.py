"""Statistics of one task, sample by sample, until it has ended.

All tasks are sampled on the same beat, and told of in one go: many messages that gRPC writes one after the other cost
it half as much as the same ones with something between.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import closing

from solo5_systemd.cgroup.usage import Usage
from solo5_systemd.nomad.beats import Beats
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.nomad.session import Session
from solo5_systemd.nomad.tasks import Known
from solo5_systemd.nomad.usage import tell_usage


class Statistics:
    """The streams of all tasks.

    Args:
        session: the engine.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._beats = Beats()

    async def samples(self, known: Known, interval: float, mhz: float) -> AsyncIterator[wire.TaskStatsResponse]:
        """A sample at once and one for each interval: files of the cgroup are read, nothing else is asked.

        It ends with the beat after the task's end. All samples are one and the same message, filled anew: gRPC has
        written it when it asks for the next.

        Args:
            known: the task.
            interval: seconds between two samples.
            mhz: of one core, 0 for unknown.
        """
        engine = await self._session.engine()
        response = wire.TaskStatsResponse(stats=wire.TaskStats(id=known.config.id))
        before: Usage | None = None
        with closing(engine.meter(known.control_group)) as meter:
            while not known.end.done():
                now = meter.sample()
                if now is not None:
                    _tell(response.stats, before, now, mhz)
                    before = now
                    await asyncio.sleep(0)  # until all the others have read theirs, too
                    yield response
                await self._beats.next(interval)


def _tell(stats: wire.TaskStats, before: Usage | None, now: Usage, mhz: float) -> None:
    stats.timestamp.seconds, stats.timestamp.nanos = divmod(time.time_ns(), 1_000_000_000)
    tell_usage(stats.agg_resource_usage, before, now, mhz)
