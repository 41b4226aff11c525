"""Stop tasks, and remove what one has left: its outcome, its network and its user."""

import asyncio
from contextlib import suppress
from signal import SIGINT, SIGTERM
from typing import TYPE_CHECKING

from solo5_systemd.base.concurrency import background
from solo5_systemd.base.declared_units import (
    declared_service,
    forget_instance,
    is_declared,
    outcome_targets_of,
    units_of,
)
from solo5_systemd.base.errors import TakenError
from solo5_systemd.base.names import TaskName, UnitKind
from solo5_systemd.engine.hung_tenders import SIGKILL, is_hung, wait_until_over
from solo5_systemd.task.workload import STOP_TIMEOUT_S
from solo5_systemd.unit.state import ActiveState, UnitState

if TYPE_CHECKING:
    from solo5_systemd.bus.manager import Manager
    from solo5_systemd.bus.network_client import Networkd
    from solo5_systemd.engine.backends import Backends

STOP_SIGNALS = (SIGINT, SIGTERM)
"""The two signals on which a tender exits. A guest sees no signal."""

STOP_JOB_TIMEOUT_S = 5.0
"""Time for PID 1 to begin a stop job before the unit is killed: milliseconds, unless it is busy, as in a daemon-reload.
A kill before the stop job would make the outcome `killed` instead of `stopped`."""

STOP_JOB_POLL_S = 0.02
"""Interval of the reads of a unit until its stop job has begun."""


async def stop(backends: "Backends", state: UnitState, signal: int, timeout_s: float) -> None:
    """Send the stop signal, wait at most `timeout_s` seconds, then kill every process of the cgroup."""
    # A frozen process does not handle signals.
    if state.frozen:
        await backends.units.thaw(state.unit)
    try:
        # A hung tender reacts to SIGKILL only.
        async with asyncio.timeout(0 if await is_hung(state, backends.usages) else timeout_s):
            if signal == SIGTERM and timeout_s <= STOP_TIMEOUT_S:
                await backends.units.stop(state.unit)  # a stop job, which goes on without this process
            else:  # the unit's KillSignal= and TimeoutStopSec= do not fit
                await send_signal(backends, state, signal)
                await wait_until_over(backends, state)
                if state.unit == declared_service(state.task):  # else Restart=, or a packet, starts it again
                    await backends.units.stop(state.unit)
    except TimeoutError:
        await _kill(backends.units, state)


async def _kill(units: "Manager", state: UnitState) -> None:
    """Kill the cgroup after a timeout, once a stop job has begun: PID 1 has the stop's timestamp before the end."""
    async with background(units.stop(state.unit)) as stopping:
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_JOB_TIMEOUT_S):
                # Once the stop job has begun, `UnitState.stop_requested` is true at the end.
                while await units.active_state(state.unit) is ActiveState.ACTIVE:  # noqa: ASYNC110 - PID 1's
                    await asyncio.sleep(STOP_JOB_POLL_S)
        await units.kill(state.unit, SIGKILL, everyone=True)
        await stopping


async def send_signal(backends: "Backends", state: UnitState, number: int) -> None:
    """Send a signal to the tender: to each process of a scope, since that has no main process.

    A task that sleeps is woken: a stopped process does not handle signals.
    """
    await backends.units.kill(state.unit, number, everyone=number == SIGKILL or state.kind is UnitKind.SCOPE)
    record = await backends.networks.record(state.task) if number != SIGKILL else None
    if record is not None and record.sleeps:
        await backends.networks.wake(state.task)


async def discard(
    backends: "Backends", name: TaskName, *, over: bool = False, keep: bool = False, unit: str = ""
) -> None:
    """Remove a task with all its resources; stop it if it is running. Idempotent.

    Raises TakenError if it is a declared task, and was started since it was known to have ended.

    Args:
        over: it is known to have ended, so that PID 1 need not be called for its state.
        keep: keep the outcome of an ended service, until it is removed.
        unit: its service or scope, to save a D-Bus call; empty: either.
    """
    # One call for most tasks, which have ended, instead of one for each property.
    if not over and await backends.units.is_running(name):
        state = await backends.units.state(name)
        if state is not None and not state.over:
            await stop(backends, state, SIGTERM, STOP_TIMEOUT_S)
    if keep:  # a retained service can be started again by systemctl
        await _release(backends.networks, name)
        await backends.users.end_claim(name)
        return
    # Once the unit is gone, another start may use the name: it would lose what is removed here by the name.
    async with backends.users.removal(name):
        if is_declared(name) and await backends.units.is_running(name):  # started since its state was read
            raise TakenError(f"task {name!r} was started meanwhile.", "Repeat the command.")
        await discard_locked(backends, name, unit)


async def discard_locked(backends: "Backends", name: TaskName, unit: str) -> None:
    """Remove all but the user; the caller has its lock."""
    for target in outcome_targets_of(name):
        await backends.units.stop(target)
    await backends.units.reset_failed([unit] if unit else units_of(name))
    await _release(backends.networks, name)
    await backends.networks.forget(name)
    forget_instance(name)


async def _release(networks: "Networkd", name: TaskName) -> None:
    """Release the network: solo5-networkd does so when a unit has ended; this waits, and covers one without a unit.

    The lease record is read first: the call activates the service.
    """
    if await networks.reservation(name) is not None:
        await networks.release(name)
