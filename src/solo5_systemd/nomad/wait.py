"""The wait for a task's end, which survives restarts of PID 1 and of the system bus, and the result for Nomad."""

import logging
import time
from dataclasses import dataclass
from functools import partial

from solo5_systemd.base.concurrency import retry
from solo5_systemd.base.errors import NoSuchTaskError, Solo5Error
from solo5_systemd.base.names import TaskName
from solo5_systemd.bus.peers import WATCH_INTERVAL_S
from solo5_systemd.nomad.engine import EngineSession
from solo5_systemd.nomad.handle import DriverState
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.nomad.scope_tenders import ScopeChildren
from solo5_systemd.unit.outcome import Ending, Outcome
from solo5_systemd.unit.state import UnitState

UNIT_REMOVED = Outcome(ending=Ending.UNKNOWN, sentence="the task's unit was removed before its outcome could be read")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TaskEnd:
    """The outcome of a task, and the time of its end in microseconds since the epoch."""

    outcome: Outcome
    time: int


class ExitWaiter:
    """Waits for the ends of services and scopes."""

    def __init__(self, session: EngineSession, scopes: ScopeChildren) -> None:
        self._session = session
        self._scopes = scopes
        self._stop_requested: set[TaskName] = set()

    def stop_requested(self, name: TaskName) -> None:
        """Record a requested stop: systemd has no such record of a child's scope."""
        self._stop_requested.add(name)

    def forget(self, name: TaskName) -> None:
        """Drop the records of a removed task."""
        self._stop_requested.discard(name)
        self._scopes.forget(name)

    async def wait(self, state: DriverState, run: UnitState) -> TaskEnd:
        """Wait for a task's end, through any outage of PID 1 or the bus."""
        # Every error: an exception in the group's task would end the plugin.
        return await retry(
            lambda: self._wait(state, run),
            Exception,
            interval_s=WATCH_INTERVAL_S,
            on_failure=partial(self._log_failure, state.task),
        )

    async def _wait(self, state: DriverState, run: UnitState) -> TaskEnd:
        """Wait once; raises a Solo5Error if PID 1 or the bus fails meanwhile."""
        try:
            # systemd has no exit status of a scope: only the parent process gets it.
            status = await self._scopes.wait(state.task)
            if status is not None:
                return await self._child_end(state, status)
            task = await self._session.engine.wait_for_run(run)
            return TaskEnd(outcome=task.outcome or UNIT_REMOVED, time=task.state.ended or _now())
        except NoSuchTaskError:
            return TaskEnd(outcome=UNIT_REMOVED, time=_now())

    def _log_failure(self, name: TaskName, error: Exception) -> None:
        if not isinstance(error, Solo5Error):
            _log.error("wait for task %s failed, retrying: internal error", name, exc_info=error)
        elif not self._session.is_closing:
            _log.warning("wait for task %s failed, retrying in %.0f s: %s", name, WATCH_INTERVAL_S, error)

    async def _child_end(self, state: DriverState, status: int) -> TaskEnd:
        requested = state.task in self._stop_requested
        outcome = await self._session.engine.child_outcome(state.task, state.started, status, stop_requested=requested)
        return TaskEnd(outcome=outcome, time=_now())


def _now() -> int:
    """Return the time in microseconds since the epoch."""
    return time.time_ns() // 1000


def exit_result(outcome: Outcome) -> wire.ExitResult:
    """Return exit code, signal and OOM flag. All zero is Nomad's success; a signal N has exit code 128+N.

    A stop has the same result for both tenders, although systemd ends hvt by SIGHUP and spt by SIGTERM.
    """
    signal = outcome.signal or 0
    return wire.ExitResult(
        exit_code=128 + signal if signal else outcome.exit_code or 0,
        signal=signal,
        oom_killed=outcome.ending is Ending.OUT_OF_MEMORY,
    )


def exit_error(outcome: Outcome) -> str:
    """Return Nomad's "Exit Message"; empty if the outcome has only exit code and signal.

    A message makes it a failure even if both are zero. It states whether a retry is futile, for the operator: Nomad
    applies its restart policy after every failure, and a driver cannot prevent that.
    """
    return "" if outcome.plain else outcome.verdict
