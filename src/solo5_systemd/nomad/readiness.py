"""The wait for a task's readiness, and the watch for its loss.

Probes are imported when a job first has a `ready` block: without a module of theirs, all other jobs run.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from signal import SIGTERM

from solo5_systemd.base.errors import InvalidRequestError, NoSuchTaskError, Solo5Error, StartError, located
from solo5_systemd.base.names import TaskName
from solo5_systemd.declared.update_request import ReadyLine
from solo5_systemd.engine.task import Phase
from solo5_systemd.network.model import Endpoint
from solo5_systemd.nomad import event_messages, ports
from solo5_systemd.nomad.engine import EngineSession
from solo5_systemd.nomad.event_messages import TaskEvent
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.nomad.task_options import GuestPort, OnLoss, ReadinessProbe, TaskOptions
from solo5_systemd.nomad.wait import TaskEnd
from solo5_systemd.task.workload import STOP_TIMEOUT_S
from solo5_systemd.unit.state import UnitState

PROBE_TIMEOUT_MIN_S = 0.5
"""Seconds until a probe without an answer fails, however short the interval is."""

LOST_AFTER_PROBES = 3
"""Failed probes in sequence after which a task counts as lost: any network may lose a single packet."""

_log = logging.getLogger(__name__)


async def check_rule(task: wire.TaskConfig, options: TaskOptions) -> None:
    """Check a job's `ready` rule, if it has one: raise InvalidRequestError for its pattern or port, or HostError."""
    if options.ready is None:
        return
    condition = options.ready.condition
    if isinstance(condition, GuestPort):
        ports.ready_port(condition, task, options)
        return
    from solo5_systemd.engine.readiness import check_pattern

    with located("config.ready.console"):
        await check_pattern(condition.pattern)


async def wait_until_ready(
    session: EngineSession,
    run: UnitState,
    condition: ReadyLine | Endpoint,
    deadline: float,
    ended: asyncio.Future[TaskEnd],
) -> str:
    """Wait until a started task is ready, and return the evidence for the task event.

    Raises:
        StartError: the deadline has passed, or the task ended before.
        InvalidRequestError: the task ended before in a way that a retry does not change, or the search for the pattern
            exceeded its limit of processor time.
    """
    from solo5_systemd.engine.readiness import first_of

    try:
        found = await first_of(run, condition, deadline, ended)
    except TimeoutError as error:
        lines = list[str]()
        with suppress(Solo5Error):  # they are a detail of the error
            console = session.engine.console(await session.engine.task(run.task), last=event_messages.LAST_LINES)
            lines = [line.message.decode("utf-8", "replace") async for line in console]
        last = event_messages.last_lines(lines)
        raise StartError(f"task was not ready within {deadline:g} s: {condition}: {error}.", last) from error
    if found is not None:
        return found
    outcome = ended.result().outcome
    kind = StartError if outcome.clean or outcome.retry else InvalidRequestError
    last = event_messages.last_lines(outcome.last_lines)
    raise kind(f"task ended before it was ready ({condition}): {outcome.sentence}.", last)


async def watch(
    session: EngineSession,
    name: TaskName,
    probe: ReadinessProbe,
    publish: Callable[[TaskEvent], None],
    on_stop: Callable[[str], None],
) -> None:
    """Probe a ready task at the job's interval until it is cancelled, or has stopped the task after a loss.

    It is lost after `LOST_AFTER_PROBES` failed probes in sequence, and ready again after one success.

    Args:
        on_stop: called with the reason before the task is stopped.
    """
    from solo5_systemd.engine import readiness

    timeout_s = min(readiness.PROBE_TIMEOUT_S, max(PROBE_TIMEOUT_MIN_S, probe.interval))
    failed, lost_at, failure = 0, 0.0, ""
    while True:
        await asyncio.sleep(probe.interval)
        try:
            failure = await readiness.failure(probe, timeout_s)
            now = asyncio.get_running_loop().time()
            before, failed = failed, failed + 1 if failure else 0
            if not failure and before >= LOST_AFTER_PROBES:  # fewer failures were no event
                publish(event_messages.ready_again(f"{probe} answers", now - lost_at))
            if failed != LOST_AFTER_PROBES:  # below it there is no loss, above it the loss is handled already
                continue
            lost_at = now
            with suppress(NoSuchTaskError):  # it has ended meanwhile, which the wait for its end reports
                if (await session.engine.task(name)).phase is Phase.FROZEN:
                    failed = 0  # a frozen guest cannot answer, and that is no loss
                    continue
            restart = probe.on_loss is OnLoss.RESTART
            publish(event_messages.not_ready(str(probe), failure, restart=restart))
            if restart:
                on_stop(f"{probe}: {failure}")
                with suppress(NoSuchTaskError):
                    await session.engine.stop_only(name, signal=SIGTERM, timeout_s=STOP_TIMEOUT_S)
                return
        except Solo5Error as error:
            failed = 0  # count again, so that the loss is handled again
            _log.warning("handling the loss of task %s (%s) failed, retrying: %s", name, failure, error)
        except Exception:  # noqa: BLE001 - an exception in the group's task would end the plugin
            _log.exception("readiness probe of task %s: internal error", name)
