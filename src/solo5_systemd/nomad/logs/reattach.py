"""Reattach the log FIFOs of recovered tasks, if the relay no longer holds them."""

import asyncio
import logging

from solo5_systemd.errors import Solo5Error
from solo5_systemd.names import TaskName
from solo5_systemd.nomad.config.values import Logging
from solo5_systemd.nomad.engine import EngineSession
from solo5_systemd.nomad.handle import DriverState
from solo5_systemd.nomad.logs import fifos
from solo5_systemd.nomad.proto import driver_pb2 as wire

CONCURRENCY = 4
"""Tasks at once: a FIFO without a reader takes its whole timeout, and a returning agent needs answers meanwhile."""

CACHE_TIMEOUT_S = 10.0
"""Seconds for which one answer of the relay serves all recovered tasks."""

_log = logging.getLogger(__name__)


class LogReattacher:
    """Reattaches FIFOs in the background: RecoverTask does not wait for it, only the report of the task's end does.

    Args:
        session: the relay.
        background: the group that runs the work.
    """

    def __init__(self, session: EngineSession, background: asyncio.TaskGroup) -> None:
        self._session = session
        self._background = background
        self._slots = asyncio.Semaphore(CONCURRENCY)
        self._querying = asyncio.Lock()
        self._held: frozenset[TaskName] = frozenset()
        self._expires = 0.0

    def begin(self, config: wire.TaskConfig, state: DriverState, *, running: bool) -> "asyncio.Task[None]":
        """Start to reattach a task's FIFOs. A failure is only logged, since the journal has the whole console.

        Args:
            config: the task's configuration, with the paths of its FIFOs.
            state: the task's handle.
            running: False: it has ended.
        """
        return self._background.create_task(self._reattach(config, state, running=running))

    async def _reattach(self, config: wire.TaskConfig, state: DriverState, *, running: bool) -> None:
        async with self._slots:
            try:
                if state.logging is Logging.JOURNALD or await self._is_lost(state.task, running=running):
                    namespace = state.log_namespace
                    await fifos.connect(
                        self._session, config, state.task, state.unit, state.started, state.logging, namespace
                    )
            except Solo5Error as error:
                _log.info("log FIFOs of task %s not reattached: %s", state.task, error)
            except Exception:  # noqa: BLE001 - an exception in the group's task would end the plugin
                _log.exception("log FIFOs of task %s not reattached: internal error", state.task)

    async def _is_lost(self, task: TaskName, *, running: bool) -> bool:
        # The relay may have delivered all of an ended task, and then no longer holds its FIFOs rightly.
        relay = (await self._session.engine()).backends.relay
        return (running or await relay.has_record(task)) and task not in await self._holds()

    async def _holds(self) -> frozenset[TaskName]:
        # A cached answer is safe: the relay closes the FIFOs of ended tasks only, when this driver drains them.
        async with self._querying:
            now = asyncio.get_running_loop().time()
            if now >= self._expires:
                self._held = await (await self._session.engine()).backends.relay.open_tasks()
                self._expires = now + CACHE_TIMEOUT_S
            return self._held
