"""Statistics of one task, sample by sample, until it has ended.

All tasks are sampled on the same beat, and told of in one go: many messages that gRPC writes one after the other cost
it half as much as the same ones with something between.
"""

import time
from collections.abc import AsyncIterator
from contextlib import closing
from typing import TYPE_CHECKING

from solo5_systemd.nomad.engine import Session
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.nomad.stats.message import tell_usage
from solo5_systemd.nomad.stats.ticker import Beats
from solo5_systemd.nomad.task.registry import Known

if TYPE_CHECKING:
    from solo5_systemd.cgroup.usage import Usage
    from solo5_systemd.engine.backends import Meter


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
        with closing(engine.meter(known.control_group)) as meter:
            account = _Account(known.config.id, meter, mhz)
            sample = account.sample()
            while not known.end.done():
                if sample is not None:
                    yield sample
                sample = await self._beats.next(interval, account.sample)


class _Account:
    """One task's message, and the sample that it was filled from."""

    def __init__(self, task_id: str, meter: "Meter", mhz: float) -> None:
        self._message = wire.TaskStatsResponse(stats=wire.TaskStats(id=task_id))
        self._meter = meter
        self._mhz = mhz
        self._before: Usage | None = None

    def sample(self) -> wire.TaskStatsResponse | None:
        """The message, with what is true now; None where the cgroup is gone."""
        now = self._meter.sample()
        if now is None:
            return None
        stats = self._message.stats
        stats.timestamp.seconds, stats.timestamp.nanos = divmod(time.time_ns(), 1_000_000_000)
        tell_usage(stats.agg_resource_usage, self._before, now, self._mhz)
        self._before = now
        return self._message
