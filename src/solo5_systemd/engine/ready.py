"""Wait until a guest that was started is ready, or has ended.

Probes are imported when a guest first has a condition: Nomad launches its plugin several times only for its name.
"""

import asyncio
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from solo5_systemd.base.errors import InvalidRequestError, Solo5Error, StartError
from solo5_systemd.base.names import primary_nic
from solo5_systemd.base.sanitize import MAX_QUOTE, bounded
from solo5_systemd.declared.update_request import Ready, ReadyLine, ReadyPort
from solo5_systemd.engine.task import Task
from solo5_systemd.network.model import Endpoint

if TYPE_CHECKING:
    from solo5_systemd.engine.runtime import Runtime
    from solo5_systemd.unit.state import UnitState

T = TypeVar("T")

PROBE_INTERVAL_S = 0.05
"""Seconds between two probes of a new guest."""

ANSWER_TIMEOUT_S = 2.0
"""Seconds until a probe without an answer fails."""

SETTLE_S = 1.0
"""Seconds for which a guest without a condition has to run to count as ready."""

LAST_LINE_TIMEOUT_S = 0.5
"""Seconds that the last line of an ended guest may take to reach the journal."""


async def first_of(
    state: "UnitState", condition: Endpoint | ReadyLine | None, timeout_s: float, ended: "asyncio.Future[T]"
) -> str | T:
    """Wait until a guest is ready, or has ended; return the evidence, or the result of `ended`.

    Raises:
        TimeoutError: neither in time; its text is why the condition does not hold, without a period.
        InvalidRequestError: the search for a pattern exceeded its limit of processor time.
    """
    wait = _Wait(state, condition)
    ready = asyncio.ensure_future(wait.until_ready())
    try:
        await asyncio.wait((ready, ended), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if ended.done() and isinstance(condition, ReadyLine):
            # PID 1 may report the end before journald has stored the last line.
            await asyncio.wait((ready,), timeout=LAST_LINE_TIMEOUT_S)
        if ready.done():
            return ready.result()
        if ended.done():
            return ended.result()
        from solo5_systemd.journal.console_storage import storage_problem

        if isinstance(condition, ReadyLine) and (problem := await storage_problem(state.log_namespace)):
            wait.failure = problem.rstrip(".")
        raise TimeoutError(wait.failure)
    finally:
        ready.cancel()
        await asyncio.gather(ready, return_exceptions=True)


class _Wait:
    """The wait for one condition; `failure`: why it does not hold, of a port by the last probe."""

    def __init__(self, state: "UnitState", condition: Endpoint | ReadyLine | None) -> None:
        self._state = state
        self._condition = condition
        self.failure = "no line matched" if isinstance(condition, ReadyLine) else "not probed"
        if condition is None:
            self.failure = f"it has to run for {SETTLE_S:g} s"

    async def until_ready(self) -> str:
        """Wait until the condition holds, and return the evidence."""
        if self._condition is None:
            await asyncio.sleep(SETTLE_S)
            return f"it runs for {SETTLE_S:g} s"
        from solo5_systemd.engine import probe

        if isinstance(self._condition, ReadyLine):
            state = self._state
            line = await probe.first_line(state.unit, state.started, self._condition.pattern, state.log_namespace)
            return f"console line “{bounded(line, MAX_QUOTE)}”"
        while self.failure:
            await asyncio.sleep(PROBE_INTERVAL_S)  # first, since a frame is lost before the tender has opened its tap
            self.failure = await probe.failure(self._condition, ANSWER_TIMEOUT_S)
        return f"{self._condition} answers"


async def until_ready(runtime: "Runtime", task: Task, condition: Ready | None, timeout_s: float) -> str:
    """Wait until the guest of an update is ready, and return the evidence.

    Raises:
        StartError: it has ended before, or was not ready in time.
    """
    known = _endpoint(task, condition) if isinstance(condition, ReadyPort) else condition
    ended = asyncio.ensure_future(end_of(runtime, task))
    try:
        found = await first_of(task.state, known, timeout_s, ended)
    except TimeoutError as error:
        why = f" ({condition or 'it runs'}): {error}"
        raise StartError(f"the new guest was not ready within {timeout_s:g} s{why}.") from error
    finally:
        ended.cancel()
        await asyncio.gather(ended, return_exceptions=True)
    if isinstance(found, End):
        raise StartError(f"the new guest ended before it was ready: {found.reason}.")
    return found


class End(NamedTuple):
    """The end of a guest, and the reason without a period."""

    reason: str


async def end_of(runtime: "Runtime", task: Task) -> End:
    """Wait for the end of a guest."""
    try:
        outcome = (await runtime.wait_for_run(task.state)).outcome
    except Solo5Error as error:
        return End(error.sentence.removesuffix("."))
    return End(outcome.sentence if outcome is not None else "it was removed")


def _endpoint(task: Task, condition: ReadyPort) -> Endpoint:
    """Return the guest's address that has a port: that of the NIC to which it is published, or of the primary one."""
    leases = task.reservation.leases if task.reservation else ()
    primary = primary_nic([lease.nic for lease in leases])
    published = task.reservation.ports if task.reservation else ()
    nic = next((each.nic for each in published if each.port == condition.port), primary)
    lease = next((each for each in leases if each.nic == nic), None)
    if lease is None or lease.first_address is None:
        raise InvalidRequestError(
            f"port {condition.port} of task {task.name} cannot be probed: expected a NIC with a leased address.",
            "Use --ready console:PATTERN.",
        )
    return Endpoint(protocol=condition.protocol, address=lease.first_address, port=condition.port)
