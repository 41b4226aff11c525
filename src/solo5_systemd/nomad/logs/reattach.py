"""Consoles of recovered tasks: led to Nomad's FIFOs again where the relay has lost these, and left alone where not.

Nobody waits for it but a task's end: a task that runs is recovered, whoever reads its console.
"""

import asyncio
import logging

from solo5_systemd.errors import Solo5Error
from solo5_systemd.names import TaskName
from solo5_systemd.nomad.config.values import Logging
from solo5_systemd.nomad.engine import Session
from solo5_systemd.nomad.handle import DriverState
from solo5_systemd.nomad.logs import fifos
from solo5_systemd.nomad.proto import driver_pb2 as wire

AT_ONCE = 4
"""So many at a time: a FIFO without a reader takes its time, and an agent that comes back wants to be answered."""

FRESH = 10.0
"""Seconds for which the relay's answer serves all who are recovered."""

_log = logging.getLogger(__name__)


class Reconnecting:
    """Leads consoles back.

    Args:
        session: the relay.
        background: it is done there.
    """

    def __init__(self, session: Session, background: asyncio.TaskGroup) -> None:
        self._session = session
        self._background = background
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._asking = asyncio.Lock()
        self._held: frozenset[TaskName] = frozenset()
        self._stale = 0.0

    def begin(self, config: wire.TaskConfig, state: DriverState, *, running: bool) -> "asyncio.Task[None]":
        """Done when the console is where it belongs, or cannot be; what fails is no error, since the journal has it."""
        return self._background.create_task(self._reconnect(config, state, running=running))

    async def _reconnect(self, config: wire.TaskConfig, state: DriverState, *, running: bool) -> None:
        async with self._turns:
            try:
                if state.logging is Logging.JOURNALD or await self._is_lost(state.task, running=running):
                    where = state.log_namespace
                    await fifos.connect(
                        self._session, config, state.task, state.unit, state.started, state.logging, where
                    )
            except Solo5Error as error:
                _log.info("The console of task %s is not led to Nomad again: %s", state.task, error)
            except Exception:  # noqa: BLE001 - one task's console must not end the plugin, and with it all watches
                _log.exception("The console of task %s is not led to Nomad again.", state.task)

    async def _is_lost(self, task: TaskName, *, running: bool) -> bool:
        """Of a task that has ended the relay may have delivered everything, and forgotten it."""
        relay = await self._session.relay()
        return (running or await relay.has_record(task)) and task not in await self._holds()

    async def _holds(self) -> frozenset[TaskName]:
        """The relay lets go only of what has ended, and when this driver tells it to."""
        async with self._asking:
            now = asyncio.get_running_loop().time()
            if now >= self._stale:
                self._held = await (await self._session.relay()).open_tasks()
                self._stale = now + FRESH
            return self._held
