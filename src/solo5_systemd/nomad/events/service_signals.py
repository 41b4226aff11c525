"""D-Bus signals of solo5-networkd and solo5-relay, as task events."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing

from solo5_systemd.concurrency import retry
from solo5_systemd.errors import Solo5Error
from solo5_systemd.names import TaskName
from solo5_systemd.nomad.engine import EngineSession
from solo5_systemd.nomad.events import messages
from solo5_systemd.nomad.events.messages import TaskEvent

RETRY_INTERVAL_S = 5.0
"""Seconds until a lost or failed subscription is renewed."""

_log = logging.getLogger(__name__)


class ServiceSignals:
    """The subscriptions to the signals of both services, from `subscribe` until the plugin ends.

    Args:
        session: the engine.
        publish: a callback for an event of the task of this name; it ignores the tasks of others.
        background: the group that runs the subscriptions.
    """

    def __init__(
        self, session: EngineSession, publish: Callable[[TaskName, TaskEvent], None], background: asyncio.TaskGroup
    ) -> None:
        self._session = session
        self._publish = publish
        self._background = background
        self._subscribed = False

    def subscribe(self) -> None:
        """Start both subscriptions. Idempotent."""
        if not self._subscribed:
            self._subscribed = True
            self._background.create_task(_keep_subscribed("solo5-networkd", self._publish_repairs))
            self._background.create_task(_keep_subscribed("solo5-relay", self._publish_dropped_lines))

    async def _publish_repairs(self) -> None:
        async with aclosing((await self._session.engine()).backends.networks.repairs()) as repairs:
            async for repair in repairs:
                for name in repair.tasks:
                    self._publish(name, messages.network_repaired(repair.what))

    async def _publish_dropped_lines(self) -> None:
        async with aclosing((await self._session.engine()).backends.relay.gaps()) as gaps:
            async for gap in gaps:
                self._publish(gap.task, messages.lines_dropped(gap.lines))


async def _keep_subscribed(service: str, listen: Callable[[], Awaitable[None]]) -> None:
    def log(error: Solo5Error) -> None:
        _log.warning("lost D-Bus signal subscription to %s, retrying in %.0f s: %s", service, RETRY_INTERVAL_S, error)

    await retry(listen, Solo5Error, interval_s=RETRY_INTERVAL_S, on_failure=log)
