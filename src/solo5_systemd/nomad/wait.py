"""The wait for a task's end, which survives restarts of PID 1 and of the system bus, and the result for Nomad."""

import logging
import time
from dataclasses import dataclass

from solo5_systemd.base.concurrency import retry
from solo5_systemd.base.errors import NoSuchTaskError, Solo5Error
from solo5_systemd.bus.peers import WATCH_INTERVAL_S
from solo5_systemd.nomad.engine import EngineSession
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


async def wait_for_end(session: EngineSession, scopes: ScopeChildren, run: UnitState) -> TaskEnd:
    """Wait for a task's end, through any outage of PID 1 or the bus."""

    def log_failure(error: Exception) -> None:
        if not isinstance(error, Solo5Error):
            _log.error("wait for task %s failed, retrying: internal error", run.task, exc_info=error)
        else:
            _log.warning("wait for task %s failed, retrying in %.0f s: %s", run.task, WATCH_INTERVAL_S, error)

    async def wait() -> TaskEnd:
        try:
            # systemd has no exit status of a scope: only the parent process gets it.
            status = await scopes.wait(run.task)
            if status is None:
                task = await session.engine.wait_for_run(run)
                return TaskEnd(outcome=task.outcome or UNIT_REMOVED, time=task.state.ended or time.time_ns() // 1000)
            requested = run.task in scopes.stop_requested
            outcome = await session.engine.child_outcome(run.task, run.started, status, stop_requested=requested)
            return TaskEnd(outcome=outcome, time=time.time_ns() // 1000)
        except NoSuchTaskError:
            return TaskEnd(outcome=UNIT_REMOVED, time=time.time_ns() // 1000)

    # Every error: an exception in the group's task would end the plugin.
    return await retry(wait, Exception, interval_s=WATCH_INTERVAL_S, on_failure=log_failure)


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

    A message makes it a failure even if both are zero, which Nomad then retries by its policy, futile or not.
    """
    return "" if outcome.plain else outcome.verdict
