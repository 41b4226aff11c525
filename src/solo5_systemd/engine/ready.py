"""Wait until a guest that was started is ready, or has ended."""

import asyncio
from dataclasses import dataclass

from solo5_systemd.base.errors import InvalidRequestError, Solo5Error, StartError
from solo5_systemd.base.names import primary_nic
from solo5_systemd.base.sanitize import MAX_QUOTE, bounded
from solo5_systemd.declared.readiness import Ready, ReadyLine
from solo5_systemd.engine.runtime import Runtime
from solo5_systemd.network.model import Endpoint, IpAddress, Reservation
from solo5_systemd.unit.state import UnitState

PROBE_INTERVAL_S = 0.05
"""Seconds between two probes of a new guest."""

ANSWER_TIMEOUT_S = 2.0
"""Seconds until a probe without an answer fails."""

SETTLE_S = 1.0
"""Seconds for which a guest without a condition has to run to count as ready."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A guest that was started."""

    state: UnitState
    reservation: Reservation

    @property
    def addresses(self) -> tuple[IpAddress, ...]:
        """Return the leased addresses."""
        return tuple(address for lease in self.reservation.leases for address in lease.addresses)


async def until_ready(runtime: Runtime, run: Run, condition: Ready | None, timeout_s: float) -> str:
    """Wait until a guest is ready, and return the evidence.

    Raises:
        StartError: it has ended before, or was not ready in time.
    """
    waiting = asyncio.ensure_future(_ready(run, condition))
    ended = asyncio.ensure_future(end_of(runtime, run))
    try:
        await asyncio.wait((waiting, ended), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if waiting.done():
            return waiting.result()
        if ended.done():
            raise StartError(f"the new guest ended before it was ready: {ended.result()}.")
        from solo5_systemd.journal.console_storage import storage_problem

        if isinstance(condition, ReadyLine) and (problem := await storage_problem(run.state.log_namespace)):
            raise StartError(f"the new guest was not seen to be ready within {timeout_s:g} s: {problem}")
        raise StartError(f"the new guest was not ready within {timeout_s:g} s ({condition or 'it runs'}).")
    finally:
        for each in (waiting, ended):
            each.cancel()
        await asyncio.gather(waiting, ended, return_exceptions=True)


async def end_of(runtime: Runtime, run: Run) -> str:
    """Wait for the end of a guest, and return the reason, without a period."""
    try:
        outcome = (await runtime.wait_for_run(run.state)).outcome
    except Solo5Error as error:
        return error.sentence.removesuffix(".")
    return outcome.sentence if outcome is not None else "it was removed"


async def _ready(run: Run, condition: Ready | None) -> str:
    from solo5_systemd.engine import probe

    if condition is None:
        await asyncio.sleep(SETTLE_S)
        return f"it runs for {SETTLE_S:g} s"
    if isinstance(condition, ReadyLine):
        state = run.state
        line = await probe.first_line(state.unit, state.started, condition.pattern, state.log_namespace)
        return f"console line “{bounded(line, MAX_QUOTE)}”"
    endpoint = Endpoint(
        protocol=condition.protocol, address=_address(run.reservation, condition.port), port=condition.port
    )
    while True:
        if not await probe.failure(endpoint, ANSWER_TIMEOUT_S):
            return f"{endpoint} answers"
        await asyncio.sleep(PROBE_INTERVAL_S)


def _address(reservation: Reservation, port: int) -> IpAddress:
    """Return the guest's address that has a port: that of the NIC to which it is published, or of the primary one."""
    primary = primary_nic([lease.nic for lease in reservation.leases])
    nic = next((each.nic for each in reservation.ports if each.port == port), primary)
    lease = next((each for each in reservation.leases if each.nic == nic), None)
    if lease is None or lease.first_address is None:
        raise InvalidRequestError(
            f"port {port} of task {reservation.task} cannot be probed: expected a NIC with a leased address.",
            "Use --ready console:PATTERN.",
        )
    return lease.first_address
