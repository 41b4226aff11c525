"""Waits until a task is ready, and watches whether it stays so.

What asks is imported when the first job wants it: Nomad launches the plugin several times only to ask for its name.
"""

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from solo5_systemd.engine.task import Phase
from solo5_systemd.errors import InvalidRequestError, NoSuchTaskError, Solo5Error, StartError
from solo5_systemd.names import TaskName
from solo5_systemd.nomad.config.ready import Change, Endpoint, Line, OnLoss, Port, Pulse, Rule, Watched
from solo5_systemd.nomad.config.task import TaskOptions
from solo5_systemd.nomad.events import messages
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.nomad.workload import ports
from solo5_systemd.workload import STOP_TIMEOUT_S, StopSignal

if TYPE_CHECKING:
    from collections.abc import Callable

    from solo5_systemd.engine.runtime import Runtime
    from solo5_systemd.nomad.engine import Session
    from solo5_systemd.nomad.events.messages import Announcement
    from solo5_systemd.nomad.handle import DriverState
    from solo5_systemd.nomad.wait import End

PATIENCE = 2.0
"""Seconds that an answer may take, where questions are not closer to each other."""

BRIEFEST = 0.5
"""The least that a guest is given for an answer."""

AGAIN = 0.1
"""Seconds between two questions of a start that waits."""

LAST_LOOK = 0.5
"""Seconds that the last line of a guest that has ended may need into the journal."""

_log = logging.getLogger(__name__)


async def check(rule: Rule, task: wire.TaskConfig, options: TaskOptions) -> None:
    """Refuse a job's rule that cannot hold, before anything is made.

    Raises:
        InvalidRequestError: its pattern is no regular expression, or the group has no such port.
        HostError: patterns cannot be searched for here.
    """
    if isinstance(rule.by, Port):
        ports.ready_port(rule.by, task, options)
        return
    from solo5_systemd.nomad.readiness import regex

    try:
        await regex.check(rule.by.pattern)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"config.ready.console: {error.sentence}") from error


class _Waiting:
    """What a start waits for; `why` says what was missing when it was last looked at."""

    def __init__(self, state: "DriverState", wanted: Line | Endpoint) -> None:
        self._state = state
        self._wanted = wanted
        self.why = "nothing yet"

    async def until_ready(self) -> str:
        """What made it ready."""
        from solo5_systemd.nomad.readiness import probe

        if isinstance(self._wanted, Line):
            state = self._state
            said = await probe.line(state.unit, state.started, self._wanted.pattern, state.log_namespace)
            return f"its console says {messages.printable(said)}"
        while self.why:
            await asyncio.sleep(AGAIN)
            self.why = await probe.problem(self._wanted, PATIENCE)
        return f"{self._wanted} answers"


async def become(
    session: "Session", state: "DriverState", wanted: Line | Endpoint, deadline: float, ended: "asyncio.Future[End]"
) -> str:
    """Wait until a task that was just started is ready, and say what made it so.

    Args:
        session: the engine.
        state: the task's.
        wanted: what is waited for.
        deadline: seconds that it has.
        ended: done when the task has ended.

    Raises:
        StartError: the deadline has passed, or the task ended before.
        InvalidRequestError: it ended in a way that another start does not change, or the search for its pattern took
            too long.
    """
    waiting = _Waiting(state, wanted)
    until = asyncio.ensure_future(waiting.until_ready())
    try:
        await asyncio.wait((until, ended), timeout=deadline, return_when=asyncio.FIRST_COMPLETED)
        if ended.done() and isinstance(wanted, Line):
            await asyncio.wait((until,), timeout=LAST_LOOK)
        if until.done():
            return until.result()
        if ended.done():
            raise _ended_before(wanted, ended.result())
        said = messages.last_lines(await _last_lines(session, state.task))
        raise StartError(f"task was not ready within {deadline:g} s: {wanted}: {waiting.why}.", said)
    finally:
        until.cancel()
        await asyncio.gather(until, return_exceptions=True)


def _ended_before(wanted: Line | Endpoint, end: "End") -> Solo5Error:
    outcome = end.outcome
    error = StartError if outcome.clean or outcome.retry else InvalidRequestError
    said = messages.last_lines(outcome.last_lines)
    return error(f"task ended before it was ready ({wanted}): {outcome.sentence}.", said)


async def _last_lines(session: "Session", name: TaskName) -> list[str]:
    """Of a guest that still runs; none where they cannot be had, since something else is to be told."""
    with suppress(Solo5Error):
        engine = await session.engine()
        task = await engine.task(name)
        entries = engine.console(task, follow=False, last=messages.LAST_LINES)
        return [entry.message.decode("utf-8", "replace") async for entry in entries]
    return []


class Keeper:
    """Watches one task that is ready, until it is cancelled or has had the task ended; `ended_for` then says why.

    Args:
        session: the engine.
        name: the task's.
        watched: what it is asked.
        tell: given an event of the task's.
    """

    def __init__(
        self, session: "Session", name: TaskName, watched: Watched, tell: "Callable[[Announcement], None]"
    ) -> None:
        self._session = session
        self._name = name
        self._watched = watched
        self._tell = tell
        self._pulse = Pulse()
        self._since = 0.0
        self.ended_for = ""

    async def keep(self) -> None:
        """Ask, at the job's interval; changes alone are told."""
        from solo5_systemd.nomad.readiness import probe

        patience = min(PATIENCE, max(BRIEFEST, self._watched.interval))
        while not self.ended_for:
            await asyncio.sleep(self._watched.interval)
            why = await probe.problem(self._watched.endpoint, patience)
            try:
                await self._beat(why)
            except Solo5Error as error:
                self._pulse = Pulse()  # it is found out, and tried, anew
                _log.warning("Task %s does not answer (%s), and nothing could be done: %s", self._name, why, error)
            except Exception:  # noqa: BLE001 - one task's watch must not end the plugin, and with it all the others'
                _log.exception("Whether task %s is ready cannot be told.", self._name)

    async def _beat(self, why: str) -> None:
        now = asyncio.get_running_loop().time()
        match self._pulse.beat(answered=not why):
            case Change.LOST:
                self._since = now
                await self._lost(why)
            case Change.REGAINED:
                self._tell(messages.regained(f"{self._watched.endpoint} answers", now - self._since))
            case None:
                pass

    async def _lost(self, why: str) -> None:
        engine = await self._session.engine()
        if await self._stands_still(engine):
            self._pulse = Pulse()  # whoever froze it knows that it does not answer
            return
        restart = self._watched.on_loss is OnLoss.RESTART
        self._tell(messages.lost(str(self._watched.endpoint), why, restart=restart))
        if restart:
            self.ended_for = f"{self._watched.endpoint}: {why}"
            with suppress(NoSuchTaskError):
                await engine.stop_only(self._name, signal=StopSignal.TERM, timeout_s=STOP_TIMEOUT_S)

    async def _stands_still(self, engine: "Runtime") -> bool:
        with suppress(NoSuchTaskError):
            return (await engine.task(self._name)).phase is Phase.FROZEN
        return False
