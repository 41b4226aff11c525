"""The end of a task: waited for through whatever happens to the bus, and read once for all who ask."""

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from solo5_systemd.engine.task import Task
from solo5_systemd.errors import NoSuchTaskError, Solo5Error
from solo5_systemd.names import TaskName
from solo5_systemd.nomad.engine import Session
from solo5_systemd.nomad.handle import DriverState
from solo5_systemd.nomad.scope.parent import Scopes
from solo5_systemd.unit.outcome import Ending, Outcome

if TYPE_CHECKING:
    from solo5_systemd.engine.runtime import Runtime

RETRY = 1.0
"""Seconds between two attempts to ask a bus that is away."""

GONE = Outcome(ending=Ending.UNKNOWN, sentence="the task's unit was removed before its outcome could be read")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class End:
    """How and when (microseconds since the epoch) a task ended."""

    outcome: Outcome
    time: int


class Endings:
    """Waits for ends.

    Args:
        session: the engine.
        scopes: those tasks that are this process's children.
    """

    def __init__(self, session: Session, scopes: Scopes) -> None:
        self._session = session
        self._scopes = scopes
        self._asked: set[TaskName] = set()

    def ask(self, name: TaskName) -> None:
        """Somebody has requested a stop: of a child, systemd has no record of that."""
        self._asked.add(name)

    def forget(self, name: TaskName) -> None:
        self._asked.discard(name)
        self._scopes.forget(name)

    async def end(self, state: DriverState, pid: int, *, seen: Task | None = None) -> End:
        """The task's end, when it has come; an outage is none.

        Args:
            state: which run.
            pid: of its tender.
            seen: as a look at many has just found it.
        """
        end = await self._look(state, pid, seen)
        while end is None:
            await asyncio.sleep(RETRY)
            end = await self._look(state, pid, None)
        return end

    async def _look(self, state: DriverState, pid: int, seen: Task | None) -> End | None:
        """The end, or None where it cannot be watched for just now."""
        try:
            engine = await self._session.engine()
            status = await self._scopes.wait(state.task)
            if status is not None:
                return await self._child_end(engine, state, status)
            task = await (
                engine.wait_for_task(seen) if seen else engine.wait_for_run(state.unit, state.invocation, pid)
            )
            return End(outcome=task.outcome or GONE, time=task.ended or _now())
        except NoSuchTaskError:
            return End(outcome=GONE, time=_now())
        except Solo5Error as error:
            if not self._session.is_closing:
                _log.warning("Task %s cannot be watched for now: %s", state.task, error)
        except Exception:  # noqa: BLE001 - one task's watch must not end the plugin, and with it all the others'
            _log.exception("Task %s cannot be watched for now.", state.task)
        return None

    async def _child_end(self, engine: "Runtime", state: DriverState, status: int) -> End:
        asked = state.task in self._asked
        outcome = await engine.child_outcome(state.task, state.started, status, stop_requested=asked)
        return End(outcome=outcome, time=_now())


def _now() -> int:
    """Microseconds since the epoch."""
    return time.time_ns() // 1000
