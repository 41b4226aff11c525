"""Update a declared task without a lost connection: its new guest runs beside the old one before it takes its place.

    1. a task `NAME.next`, of NAME@1 `NAME.next.1`, is started with the new image and an address of its own
    2. when it is ready, the published ports are moved to it; connections stay with the old guest
    3. it is watched while connections of the old guest end
    4. the task itself is started again with the new image, at the address that it always has
    5. when that is ready, the ports are moved back; `NAME.next` is removed once its connections have ended

A unit of systemd can have neither a second main process nor another one's, so the guest starts twice; a unikernel does
so in some milliseconds. Until step 4 nothing of the task is changed: a failure moves the ports back to the old guest.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Protocol as Interface

from solo5_systemd.declared.readiness import Ready, ReadyLine
from solo5_systemd.declared.update import (
    READY_TIMEOUT_S,
    UpdateRequest,
    check_beside,
    check_same_devices,
    next_task,
    ready_by,
)
from solo5_systemd.engine.facts import Host
from solo5_systemd.engine.plan import Plan
from solo5_systemd.engine.runtime import Runtime
from solo5_systemd.engine.start import Starter
from solo5_systemd.engine.task import NoCallbacks
from solo5_systemd.errors import (
    HostError,
    InvalidRequestError,
    NoSuchTaskError,
    NotFoundError,
    Solo5Error,
    StartError,
)
from solo5_systemd.image.manifest import Manifest
from solo5_systemd.names import TaskName, host_name, prepare_service, primary_nic
from solo5_systemd.network.model import Endpoint, IpAddress, Lease, NicRequest, PortRequest, Reservation
from solo5_systemd.sanitize import MAX_QUOTE, bounded
from solo5_systemd.unit.outcome import REQUESTED, Outcome
from solo5_systemd.unit.properties import JobAssertError, JobCanceledError, JobConflictError
from solo5_systemd.unit.state import ActiveState, UnitState
from solo5_systemd.workload import Workload

PROBE_INTERVAL_S = 0.05
"""Seconds between two probes of a new guest."""

ANSWER_TIMEOUT_S = 2.0
"""Seconds until a probe without an answer fails."""

SETTLE_S = 1.0
"""Seconds for which a guest without a condition has to run to count as ready."""

WATCH_INTERVAL_S = 0.5
"""Seconds between two looks at the old guest and its connections."""

RELOAD_MARGIN_S = 2.0
"""Seconds before PID 1 ends a reload in which an update has to be ready or undone, so that both have one result."""


class StoppedError(InvalidRequestError):
    """The task was stopped during its update."""


class Images(Interface):
    """Which image the task is started with; each takes effect before it returns."""

    async def switch(self) -> None:
        """Have the next start use the new image; the one that runs is kept. If it raises, nothing has changed."""

    async def revert(self) -> None:
        """Have the next start use the image that ran before `switch`."""

    async def finish(self) -> None:
        """Make the image that ran before `switch` the one of a rollback."""


class Progress(Interface):
    """What an update reports."""

    def begin(self, phase: str) -> None:
        """Record a phase: `beside`, `switching`, `draining` or `pausing`, before its first step."""

    def step(self, text: str) -> None:
        """Report a step that was taken."""

    def serving(self) -> None:
        """Report that the new guest has the ports."""


@dataclass(frozen=True, kw_only=True)
class _Run:
    """A guest that was started."""

    state: UnitState
    reservation: Reservation


class Updater:
    """Updates one declared task.

    Args:
        runtime: the engine.
        name: of the task.
        service: its unit.
        images: of the task.
        progress: gets each phase and step.
        publishes: it is declared with published ports.

    Attributes:
        whole: the task is as before, or updated: nothing of an update is left.
    """

    def __init__(
        self, runtime: Runtime, name: TaskName, service: str, images: Images, progress: Progress, *, publishes: bool
    ) -> None:
        self.whole = True
        self._has_run = True  # else its outcome is that of a run before a start that failed
        self._publishes = publishes
        self._usual: Ready | None = None
        self._runtime = runtime
        self._starter = Starter(runtime.backends, runtime.make_room)
        self._networks = runtime.backends.networks
        self._units = runtime.backends.units
        self._name = name
        self._next = next_task(name)
        self._service = service
        self._images = images
        self._progress = progress
        self._dependents: Sequence[str] = ()

    async def update(self, declared: Workload, request: UpdateRequest, usual: Ready | None, old: Manifest) -> None:
        """Update the task; if that fails, it is as before.

        Args:
            declared: the task as it is declared.
            request: of the operator, completed.
            usual: what makes the guest of the declaration ready, for a return to the earlier image.
            old: manifest of the image that it runs.

        Raises:
            Solo5Error: the update was not possible, or was undone.
        """
        first = await self._present()
        workload = replace(declared, image=request.image or declared.image)
        ports = first.reservation.ports
        if not ports and await self.ports():
            raise InvalidRequestError(
                f"task {self._next} has the published ports of task {self._name}: expected none beside it.",
                f"To move them back: {self._return_of_ports}",
            )
        condition = ready_by(request.ready, ports)
        self._usual = ready_by(usual, ports)
        self._dependents = await self._units.dependents(self._service)
        if self._dependents:
            self._progress.step(f"units that are restarted with {self._service}: {', '.join(self._dependents)}")
        if isinstance(condition, ReadyLine):
            from solo5_systemd.readiness.probe import check_pattern

            await check_pattern(condition.pattern)
        if request.pause:
            # The rest of preflight needs what the old guest has.
            image = await Host(self._runtime.backends, self._runtime.make_room).store_image(workload)
            check_same_devices(workload.image, image.facts.manifest, old)
            await self._update_with_pause(request, condition)
            return
        check_beside(workload, ports)
        beside = replace(
            workload,
            name=self._next,
            nics=tuple(map(_without_own, workload.nics)),
            hostname=workload.hostname or host_name(self._name),
        )
        until = await self._reload_end()
        async with self._in_time(until):
            planned = await self._starter.plan(beside)
        check_same_devices(beside.image, planned.image.facts.manifest, old)
        if tuple(planned.ports) != tuple(ports):
            raise InvalidRequestError(
                f"the published ports of {self._name} have changed since it was started: "
                "expected the same ones for an update.",
                "To publish the new ones: systemctl restart",
            )
        self._begin("beside")
        await self._update_beside(replace(planned, lent=ports), first, request, condition, until)

    async def _reload_end(self) -> float | None:
        """Return until when the new guest must have the ports, of the loop's clock; None: there is no limit.

        A reload that PID 1 ends has failed, whatever becomes of the update.

        Raises:
            InvalidRequestError: that is over.
        """
        left = await self._units.reload_time_left(self._service)
        if left is None:
            return None
        if left <= RELOAD_MARGIN_S:
            raise InvalidRequestError(
                f"TimeoutStartSec= of task {self._name} ends its reload in {left:.1f} s: expected more than "
                f"{RELOAD_MARGIN_S:g} s for the start of its new guest.",
                f"solo5ctl update {self._name} has no such limit.",
            )
        return asyncio.get_running_loop().time() + left - RELOAD_MARGIN_S

    @asynccontextmanager
    async def _in_time(self, until: float | None) -> AsyncGenerator[None, None]:
        """Cancel what is done here at the end of a reload; raises StartError then."""
        timeout = asyncio.timeout_at(until)
        try:
            async with timeout:
                yield
        except TimeoutError as error:
            if not timeout.expired():
                raise
            raise StartError(
                f"the new guest did not have the published ports before TimeoutStartSec= of task {self._name} ends its "
                "reload.",
                f"solo5ctl update {self._name} has no such limit.",
            ) from error

    async def check_running(self) -> None:
        """Refuse a task that does not run; raises InvalidRequestError."""
        await self._present()

    async def _update_beside(
        self,
        planned: Plan,
        first: _Run,
        request: UpdateRequest,
        condition: Ready | None,
        until: float | None,
    ) -> None:
        try:
            async with self._in_time(until):
                async with self._starter.service(planned, NoCallbacks()) as started:
                    second = _Run(state=started.state, reservation=started.reservation or Reservation(task=self._next))
                evidence = await self._until_ready(second, condition, request.timeout or 0.0)
                await self._networks.move_ports(self._name, self._next)
            self._progress.step(f"the new guest, task {self._next}, has the published ports: {evidence}")
            self._progress.serving()
            await self._watch(first, second, request)
            self._begin("switching")
            await self._images.switch()
        except BaseException:
            await asyncio.shield(self.abandon())
            raise
        try:
            third, _ = await self._run_again(condition, request.timeout or 0.0)
        except StoppedError:
            await self._leave_stopped()
            raise
        except Solo5Error as error:
            raise await self._switch_back(error, request) from error
        await self._images.finish()
        self._begin("draining")
        await self._take_ports_back()
        self._progress.step(f"task {self._name} runs the new image and has its ports again")
        await self._drain(third, second, request.drain or 0.0)
        await self.remove_next()
        self.whole = True

    def _begin(self, phase: str) -> None:
        self.whole = False
        self._progress.begin(phase)

    # -- steps ---------------------------------------------------------------------------------------------------

    async def _present(self) -> _Run:
        state = await self._units.state(self._name)
        if state is None or state.over or not state.main_pid:
            raise InvalidRequestError(
                f"task {self._name} does not run: expected one that does.", f"Start it: systemctl start {self._name}"
            )
        if state.frozen:  # it answers no stop, and its connections do not end
            raise InvalidRequestError(
                f"task {self._name} is frozen: expected one that runs.", f"Thaw it: solo5ctl thaw {self._name}"
            )
        reservation = await self._networks.reservation(self._name)
        return _Run(state=state, reservation=reservation or Reservation(task=self._name))

    async def _until_ready(self, run: _Run, condition: Ready | None, timeout_s: float) -> str:
        """Wait until a guest is ready, and return the evidence.

        Raises:
            StartError: it has ended before, or was not ready in time.
        """
        waiting = asyncio.ensure_future(self._ready(run, condition))
        ended = asyncio.ensure_future(self._runtime.wait_for_run(run.state))
        try:
            await asyncio.wait((waiting, ended), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                return waiting.result()
            if ended.done():
                raise StartError(f"the new guest ended before it was ready: {await _sentence(ended)}.")
            from solo5_systemd.journal.stored import storage_problem

            if isinstance(condition, ReadyLine) and (problem := await storage_problem(run.state.log_namespace)):
                raise StartError(f"the new guest was not seen to be ready within {timeout_s:g} s: {problem}")
            raise StartError(f"the new guest was not ready within {timeout_s:g} s ({condition or 'it runs'}).")
        finally:
            for each in (waiting, ended):
                each.cancel()
            await asyncio.gather(waiting, ended, return_exceptions=True)

    async def _ready(self, run: _Run, condition: Ready | None) -> str:
        from solo5_systemd.readiness import probe

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

    async def _watch(self, first: _Run, second: _Run, request: UpdateRequest) -> None:
        """Watch the new guest, and wait for the end of the old one's connections.

        Raises:
            StartError: it has ended.
            StoppedError: the task was stopped meanwhile.
        """
        loop = asyncio.get_running_loop()
        begun, watch, drain = loop.time(), request.watch or 0.0, request.drain or 0.0
        ended = asyncio.ensure_future(self._runtime.wait_for_run(second.state))
        try:
            while True:
                left = watch - (loop.time() - begun)
                await asyncio.wait((ended,), timeout=min(WATCH_INTERVAL_S, left) if left > 0 else WATCH_INTERVAL_S / 5)
                if ended.done():
                    raise StartError(f"the new guest ended within its watch: {await _sentence(ended)}.")
                if await self._is_over(first):
                    raise self._stopped()
                elapsed = loop.time() - begun
                if elapsed >= watch and (elapsed >= drain or not await self._connections(first)):
                    return
        finally:
            ended.cancel()
            await asyncio.gather(ended, return_exceptions=True)

    async def _is_over(self, run: _Run) -> bool:
        """Return whether the task has ended without a failure. An old guest that has failed does not end the update."""
        state = await self._units.current(run.state)
        if state is not None and not state.over:
            return False
        outcome = await self._outcome()
        return outcome is None or outcome.clean

    async def _is_stopped(self) -> bool:
        """Return whether the task was stopped on request, or removed, and does not run."""
        state = await self._units.state(self._name)
        if state is not None and not state.over:
            return False
        outcome = await self._outcome()
        return outcome is None or outcome.ending in REQUESTED

    async def _outcome(self) -> Outcome | None:
        """Return the outcome of the task's last run; None if the task was removed, and its unit loaded anew since."""
        with suppress(NoSuchTaskError):
            task = await self._runtime.task(self._name)
            return task.outcome if task.state.started else None
        return None

    def _stopped(self) -> StoppedError:
        return StoppedError(
            f"task {self._name} was stopped during its update: it stays stopped.",
            f"To repeat the update: systemctl start {self._name}, and then the same command.",
        )

    async def _drain(self, task: _Run, run: _Run, drain: float) -> None:
        """Wait for the end of a guest's connections, or of the task."""
        loop = asyncio.get_running_loop()
        until = loop.time() + drain
        while True:
            if loop.time() >= until or not await self._connections(run) or await self._is_over(task):
                return
            await asyncio.sleep(WATCH_INTERVAL_S)

    async def _connections(self, run: _Run) -> int:
        addresses = [address for lease in run.reservation.leases for address in lease.addresses]
        return await self._networks.connections(addresses) if addresses else 0

    async def _run_again(self, condition: Ready | None, timeout_s: float, *, anew: bool = True) -> tuple[_Run, str]:
        """Start the task again, wait until it is ready, and return its run and the evidence.

        The operator's stop is not overridden: not before the start, nor while its job waits, nor afterwards.

        Args:
            condition: what makes it ready.
            timeout_s: seconds in which it has to become ready.
            anew: also if it runs.

        Raises:
            StoppedError: it was stopped, and does not run.
            Solo5Error: it is not ready.
        """
        try:
            await (self._restart if anew else self._ensure_started)()
        except JobCanceledError:
            raise self._stopped() from None
        try:
            run = await self._present()
            for unit in self._dependents:  # those of a start that has failed are stopped
                await self._units.begin(unit)
            return run, await self._until_ready(run, condition, timeout_s)
        except Solo5Error as error:
            if await self._is_stopped():
                raise self._stopped() from error
            raise

    async def _restart(self) -> None:
        """Stop and start the task, unless it was stopped: PID 1 decides, if that happens at the same time."""
        has_run, until = self._has_run, asyncio.get_running_loop().time() + READY_TIMEOUT_S
        while True:
            state = await self._not_stopped()
            self._has_run = False
            over = state is None or state.over
            if not over:  # StartLimitBurst= is for crashes: an operator's updates in a row are not refused half-way
                await self._units.reset_failed([self._service])
            try:
                await self._units.restart(self._service, running=not over)
            except JobConflictError:  # a stop is enqueued, of the task or of its last preparation
                if asyncio.get_running_loop().time() >= until:
                    raise
                self._has_run = has_run
                await asyncio.sleep(PROBE_INTERVAL_S)
                continue
            except JobAssertError:  # the stop of its last preparation was still queued
                failed = await self._units.active_state(prepare_service(self._name)) is ActiveState.FAILED
                if failed or asyncio.get_running_loop().time() >= until:
                    raise
                await asyncio.sleep(PROBE_INTERVAL_S)
                continue
            self._has_run = has_run = True
            now = await self._units.state(self._name)
            if over or now is None or state is None or now.invocation != state.invocation:
                return  # else it was ending when PID 1 handled the call

    async def _ensure_started(self) -> None:
        await self._not_stopped()
        self._has_run = False
        await self._units.ensure_started(self._service)
        self._has_run = True

    async def _not_stopped(self) -> UnitState | None:
        """Return the state of the task once it is not ending, which a start would cancel.

        Raises:
            StoppedError: it was stopped.
        """
        while True:
            state = await self._units.state(self._name)
            if state is None or state.active is not ActiveState.DEACTIVATING:
                break
            with suppress(NoSuchTaskError):  # it has been started again
                await self._runtime.wait_for_run(state)
        if self._has_run and await self._is_stopped():
            raise self._stopped()
        return state

    async def _leave_stopped(self) -> None:
        """Return to the earlier image without a start."""
        await self._images.revert()
        await self.abandon()

    async def _switch_back(self, error: Solo5Error, request: UpdateRequest) -> Solo5Error:
        """Start the task with its earlier image; return the error to raise. The guest beside it serves meanwhile."""
        try:
            await self._return_to_earlier(request)
        except StoppedError as stopped:
            await self.abandon()
            return stopped
        except Solo5Error as second:
            return HostError(
                f"task {self._name} starts neither with the new image ({error.sentence}) nor with its earlier one "
                f"({second.sentence}): task {self._next} has its ports.",
                f"Mend the cause, and then: systemctl restart {self._name} && {self._return_of_ports}",
            )
        await self.abandon()
        return error

    async def _update_with_pause(self, request: UpdateRequest, condition: Ready | None) -> None:
        """Stop the task, and start it with the new image; return to the earlier one if it is not ready."""
        loop = asyncio.get_running_loop()
        self._begin("pausing")
        try:
            await self._images.switch()
        except BaseException:
            self.whole = True
            raise
        begun = loop.time()
        try:
            run, evidence = await self._run_again(condition, request.timeout or 0.0)
            pause = loop.time() - begun
            self._progress.step(f"task {self._name} runs the new image: {evidence}, after a pause of {pause:.2f} s")
            self._progress.serving()
            with suppress(TimeoutError):
                async with asyncio.timeout(request.watch or 0.0):
                    sentence = await _sentence(asyncio.ensure_future(self._runtime.wait_for_run(run.state)))
                    if await self._is_stopped():
                        raise self._stopped()
                    raise StartError(f"the new guest ended within its watch: {sentence}.")
        except StoppedError:
            await self._leave_stopped()
            raise
        except (Solo5Error, asyncio.CancelledError):
            try:
                await asyncio.shield(self._return_to_earlier(request))
            except StoppedError:
                self.whole = True
                raise
            self.whole = True
            raise
        await self._images.finish()
        self.whole = True

    async def _return_to_earlier(self, request: UpdateRequest) -> None:
        await self._images.revert()
        await self._run_again(self._usual, max(request.timeout or 0.0, READY_TIMEOUT_S))

    @property
    def _return_of_ports(self) -> str:
        """Return the command that ends the guest beside the task, upon which the ports lead to the task again."""
        return f"solo5ctl rm --force {self._next}"

    # -- after an interruption -----------------------------------------------------------------------------------

    async def abandon(self) -> None:
        """Move the ports back to the task, if it runs, and remove the guest beside it."""
        if await self._networks.reservation(self._name) is not None:
            await self._take_ports_back()
        await self.remove_next()
        self.whole = True

    async def _take_ports_back(self) -> None:
        """Move the ports back to the task. If the guest that had them has ended, a start of the task publishes them."""
        with suppress(NotFoundError):
            await self._networks.move_ports(self._next, self._name)
        held = await self._networks.reservation(self._name)
        if self._publishes and held is not None and not held.ports:
            self._progress.step(f"task {self._name} is started again: task {self._next} has ended with its ports")
            await self.remove_next()
            with suppress(JobCanceledError):
                await self._units.restart(self._service, running=True)

    async def remove_next(self) -> None:
        """Stop and remove the guest beside the task, and the UDP flows that led to it."""
        await self._runtime.discard(self._next)
        if await self._networks.reservation(self._name) is not None:
            await self._networks.attach(self._name)  # it deletes flows to other guests than its own

    async def ports(self) -> Sequence[PortRequest]:
        """Return the published ports of the task, whichever guest has them."""
        for name in (self._name, self._next):
            held = await self._networks.reservation(name)
            if held is not None and held.ports:
                return held.ports
        return ()

    async def complete(self, condition: Ready | None, timeout_s: float, *, restart: bool = False) -> None:
        """End an update that was interrupted while the task was started with the new image.

        Args:
            condition: what makes it ready.
            timeout_s: seconds in which it has to become ready.
            restart: start it again, since its image was changed.

        Raises:
            StoppedError: it was stopped, and does not run.
            Solo5Error: the task is not ready. The guest beside it keeps the ports.
        """
        self._has_run = not await self._units.was_refused(self._service)
        await self._run_again(condition, timeout_s, anew=restart)
        await self.abandon()


async def _sentence(ended: "Awaitable[object]") -> str:
    """Return why a guest ended."""
    try:
        outcome = getattr(await ended, "outcome", None)
    except Solo5Error as error:
        return error.sentence.removesuffix(".")
    return outcome.sentence if outcome is not None else "it was removed"


def _without_own(nic: NicRequest) -> NicRequest:
    """Return a NIC for a guest that runs beside the one with the requested addresses and routes."""
    return replace(nic, ipv4=None, mac=None, ipv6=None, limits=replace(nic.limits, routes=()))


def _address(reservation: Reservation, port: int) -> IpAddress:
    """Return the guest's address that has a port: that of the NIC to which it is published, or of the primary one."""
    names = [lease.nic for lease in reservation.leases]
    published: Callable[[PortRequest], bool] = lambda each: each.port == port  # noqa: E731
    nic = next((each.nic for each in filter(published, reservation.ports)), primary_nic(names))
    lease: Lease | None = next((each for each in reservation.leases if each.nic == nic), None)
    if lease is None or lease.first_address is None:
        raise InvalidRequestError(
            f"port {port} of task {reservation.task} cannot be probed: expected a NIC with a leased address.",
            "Use --ready console:PATTERN.",
        )
    return lease.first_address
