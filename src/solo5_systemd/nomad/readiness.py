"""The wait for a task's readiness, and the watch for its loss.

Probes are imported when a job first has a `ready` block: Nomad launches the plugin several times only for its name.
"""

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from solo5_systemd.base.errors import InvalidRequestError, NoSuchTaskError, Solo5Error, StartError
from solo5_systemd.base.names import TaskName
from solo5_systemd.engine.task import Phase
from solo5_systemd.network.model import Endpoint
from solo5_systemd.nomad.config.ready import ConsoleLine, GuestPort, OnLoss, ReadinessProbe, Rule
from solo5_systemd.nomad.config.task import TaskOptions
from solo5_systemd.nomad.events import messages
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.nomad.workload import ports
from solo5_systemd.task.workload import STOP_TIMEOUT_S, StopSignal

if TYPE_CHECKING:
    from collections.abc import Callable

    from solo5_systemd.engine.runtime import Runtime
    from solo5_systemd.nomad.engine import EngineSession
    from solo5_systemd.nomad.events.messages import TaskEvent
    from solo5_systemd.nomad.handle import DriverState
    from solo5_systemd.nomad.wait import TaskEnd


ANSWER_TIMEOUT_S = 2.0
"""Seconds until a probe without an answer fails, unless the probe interval is shorter."""

ANSWER_TIMEOUT_MIN_S = 0.5
"""The same at the least, however short the interval is."""

LOST_AFTER_PROBES = 3
"""Failed probes in sequence after which a task counts as lost: any network may lose a single packet."""

PROBE_INTERVAL_S = 0.1
"""Seconds between two probes during a start."""

LAST_LINE_TIMEOUT_S = 0.5
"""Seconds that the last line of an ended guest may take to reach the journal."""

_log = logging.getLogger(__name__)


async def check_rule(rule: Rule, task: wire.TaskConfig, options: TaskOptions) -> None:
    """Check a `ready` rule before anything is made for the task.

    Raises:
        InvalidRequestError: its pattern is not a regular expression, or the group has no such port.
        HostError: grep cannot be executed.
    """
    if isinstance(rule.condition, GuestPort):
        ports.ready_port(rule.condition, task, options)
        return
    from solo5_systemd.engine.probe import check_pattern

    try:
        await check_pattern(rule.condition.pattern)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"config.ready.console: {error.sentence}") from error


class _Wait:
    """The wait for one condition. `failure` is the result of the last probe."""

    def __init__(self, state: "DriverState", condition: ConsoleLine | Endpoint) -> None:
        self._state = state
        self._condition = condition
        self.failure = "no line matched" if isinstance(condition, ConsoleLine) else "not probed"

    async def until_ready(self) -> str:
        """Wait until the condition holds, and return the evidence for the task event."""
        from solo5_systemd.engine import probe

        if isinstance(self._condition, ConsoleLine):
            state = self._state
            line = await probe.first_line(state.unit, state.started, self._condition.pattern, state.log_namespace)
            return f"console line “{messages.printable(line)}”"
        while self.failure:
            await asyncio.sleep(PROBE_INTERVAL_S)
            self.failure = await probe.failure(self._condition, ANSWER_TIMEOUT_S)
        return f"{self._condition} answers"


async def wait_until_ready(
    session: "EngineSession",
    state: "DriverState",
    condition: ConsoleLine | Endpoint,
    deadline: float,
    ended: "asyncio.Future[TaskEnd]",
) -> str:
    """Wait until a started task is ready, and return the evidence for the task event.

    Args:
        deadline: seconds until the wait fails.
        ended: done when the task has ended.

    Raises:
        StartError: the deadline has passed, or the task ended before.
        InvalidRequestError: the task ended before in a way that a retry does not change, or the search for the pattern
            exceeded its limit of processor time.
    """
    wait = _Wait(state, condition)
    until = asyncio.ensure_future(wait.until_ready())
    try:
        await asyncio.wait((until, ended), timeout=deadline, return_when=asyncio.FIRST_COMPLETED)
        if ended.done() and isinstance(condition, ConsoleLine):
            # PID 1 may report the end before journald has stored the last line.
            await asyncio.wait((until,), timeout=LAST_LINE_TIMEOUT_S)
        if until.done():
            return until.result()
        if ended.done():
            raise _ended_before(condition, ended.result())
        last = messages.last_lines(await _last_lines(session, state.task))
        from solo5_systemd.journal.console_storage import storage_problem

        if isinstance(condition, ConsoleLine) and (problem := await storage_problem(state.log_namespace)):
            wait.failure = problem.rstrip(".")
        raise StartError(f"task was not ready within {deadline:g} s: {condition}: {wait.failure}.", last)
    finally:
        until.cancel()
        await asyncio.gather(until, return_exceptions=True)


def _ended_before(condition: ConsoleLine | Endpoint, end: "TaskEnd") -> Solo5Error:
    outcome = end.outcome
    error = StartError if outcome.clean or outcome.retry else InvalidRequestError
    last = messages.last_lines(outcome.last_lines)
    return error(f"task ended before it was ready ({condition}): {outcome.sentence}.", last)


async def _last_lines(session: "EngineSession", name: TaskName) -> list[str]:
    """Return the last console lines of a running guest; none if they cannot be read."""
    with suppress(Solo5Error):  # the caller raises its own error, of which these lines are only a detail
        engine = await session.engine()
        task = await engine.task(name)
        lines = engine.console(task, follow=False, last=messages.LAST_LINES)
        return [line.message.decode("utf-8", "replace") async for line in lines]
    return []


class ReadinessWatch:
    """The watch over one ready task: it probes until it is cancelled, or has stopped the task after a loss.

    Args:
        publish: a callback for the task's events.

    Attributes:
        stop_reason: why the watch stopped the task; empty if it did not.
    """

    def __init__(
        self, session: "EngineSession", name: TaskName, probe: ReadinessProbe, publish: "Callable[[TaskEvent], None]"
    ) -> None:
        self._session = session
        self._name = name
        self._probe = probe
        self._publish = publish
        self._failed = 0  # probes in sequence
        self._lost_at = 0.0
        self.stop_reason = ""

    async def run(self) -> None:
        """Probe at the job's interval, and handle loss and return."""
        from solo5_systemd.engine import probe

        timeout_s = min(ANSWER_TIMEOUT_S, max(ANSWER_TIMEOUT_MIN_S, self._probe.interval))
        while not self.stop_reason:
            await asyncio.sleep(self._probe.interval)
            failure = await probe.failure(self._probe, timeout_s)
            try:
                await self._count(failure)
            except Solo5Error as error:
                self._failed = 0  # count again, so that the loss is handled again
                _log.warning("handling the loss of task %s (%s) failed, retrying: %s", self._name, failure, error)
            except Exception:  # noqa: BLE001 - an exception in the group's task would end the plugin
                _log.exception("readiness probe of task %s: internal error", self._name)

    async def _count(self, failure: str) -> None:
        """Count a probe: lost after `LOST_AFTER_PROBES` failed ones in sequence, ready after one success."""
        now = asyncio.get_running_loop().time()
        before, self._failed = self._failed, self._failed + 1 if failure else 0
        if self._failed == LOST_AFTER_PROBES:
            self._lost_at = now
            await self._handle_loss(failure)
        elif not failure and before >= LOST_AFTER_PROBES:
            self._publish(messages.ready_again(f"{self._probe} answers", now - self._lost_at))

    async def _handle_loss(self, failure: str) -> None:
        engine = await self._session.engine()
        if await self._is_frozen(engine):
            self._failed = 0  # a frozen guest cannot answer, and that is no loss
            return
        restart = self._probe.on_loss is OnLoss.RESTART
        self._publish(messages.not_ready(str(self._probe), failure, restart=restart))
        if restart:
            self.stop_reason = f"{self._probe}: {failure}"
            with suppress(NoSuchTaskError):
                await engine.stop_only(self._name, signal=StopSignal.TERM, timeout_s=STOP_TIMEOUT_S)

    async def _is_frozen(self, engine: "Runtime") -> bool:
        with suppress(NoSuchTaskError):
            return (await engine.task(self._name)).phase is Phase.FROZEN
        return False
