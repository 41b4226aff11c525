"""Start a declared task again. A stop of the operator's is not overridden, whenever it comes."""

import asyncio
from contextlib import suppress

from solo5_systemd.base.errors import InvalidRequestError, NoSuchTaskError, Solo5Error
from solo5_systemd.base.names import TaskName, prepare_service
from solo5_systemd.bus.peers import JobAssertError, JobCanceledError, JobConflictError
from solo5_systemd.declared.update_request import Ready
from solo5_systemd.engine.readiness import until_ready
from solo5_systemd.engine.runtime import Runtime
from solo5_systemd.engine.task import Phase, Task
from solo5_systemd.unit.outcome import REQUESTED, Outcome
from solo5_systemd.unit.state import ActiveState, UnitState

JOB_RETRY_S = 0.05
"""Seconds until a job is requested again that PID 1 cannot enqueue, or execute, beside the stop of the last run."""

RETRY_TIMEOUT_S = 20.0
"""Seconds for which it is requested, and for which solo5-networkd may take to deal with the end of a run."""


class StoppedError(InvalidRequestError):
    """The task was stopped during its update."""


class Restarter:
    """Starts one declared task again."""

    def __init__(self, runtime: Runtime, name: TaskName, service: str) -> None:
        self._runtime = runtime
        self._networks = runtime.backends.networks
        self._units = runtime.backends.units
        self._name = name
        self._service = service
        self.dependents: tuple[str, ...] = ()  # units to start then, which PID 1 stops with the task
        self._has_run = True  # else its outcome is that of a run before a start that failed

    async def present(self) -> Task:
        """Return the task with its run and reservation; raises InvalidRequestError if it does not run."""
        state = await self._units.state(self._name)
        if state is None or state.over or not state.main_pid:
            raise InvalidRequestError(f"task {self._name} does not run.", f"Start it: systemctl start {self._name}")
        if state.frozen:  # it answers no stop, and its connections do not end
            raise InvalidRequestError(f"task {self._name} is frozen.", f"Thaw it: solo5ctl thaw {self._name}")
        reservation = await self._networks.reservation(self._name)
        return Task(state=state, phase=Phase.RUNNING, reservation=reservation)

    async def start(self, condition: Ready | None, timeout_s: float, *, again: bool = True) -> tuple[Task, str]:
        """Start the task, wait until it is ready, and return its run and the evidence.

        Args:
            again: stop it first if it runs.

        Raises:
            StoppedError: it was stopped, and does not run.
            Solo5Error: it is not ready.
        """
        try:
            await (self._restart() if again else self._ensure_started())
        except JobCanceledError:
            raise self.stopped() from None
        try:
            run = await self.present()
            for unit in self.dependents:  # those of a start that has failed are stopped
                await self._units.begin(unit)
            return run, await until_ready(self._runtime, run, condition, timeout_s)
        except Solo5Error as error:
            if await self.is_stopped():
                raise self.stopped() from error
            raise

    async def forget_failed_start(self) -> None:
        """Do not take the outcome of an earlier run for that of a start that has failed: it may be a stop."""
        self._has_run = not await self._units.was_refused(self._service)

    async def _ensure_started(self) -> None:
        await self._not_stopped()
        self._has_run = False
        await self._units.ensure_started(self._service)
        self._has_run = True

    async def _restart(self) -> None:
        """Stop and start the task, unless it was stopped: PID 1 decides, if that happens at the same time."""
        has_run, until = self._has_run, asyncio.get_running_loop().time() + RETRY_TIMEOUT_S
        while True:
            state = await self._not_stopped()
            self._has_run = False
            over = state is None or state.over
            if not over:  # StartLimitBurst= is for crashes: an operator's updates in a row are not refused half-way
                await self._units.reset_failed([self._service])
            try:
                await self._units.restart(self._service, running=not over)
            except (JobConflictError, JobAssertError) as error:
                # A stop is enqueued, of the task or of its last preparation, whose result is asserted.
                conflicts = isinstance(error, JobConflictError)
                failed = not conflicts and (
                    await self._units.active_state(prepare_service(self._name)) is ActiveState.FAILED
                )
                if failed or asyncio.get_running_loop().time() >= until:
                    raise
                self._has_run = has_run and conflicts
                await asyncio.sleep(JOB_RETRY_S)
                continue
            self._has_run = has_run = True
            now = await self._units.state(self._name)
            if over or now is None or state is None or now.invocation != state.invocation:
                return  # else it was ending when PID 1 handled the call

    async def _settled(self) -> UnitState | None:
        """Return the state of the task once it is not ending."""
        while True:
            state = await self._units.state(self._name)
            if state is None or state.active is not ActiveState.DEACTIVATING:
                return state
            with suppress(NoSuchTaskError):  # it has been started again
                await self._runtime.wait_for_run(state)

    async def _not_stopped(self) -> UnitState | None:
        """Return the state of the task once it is not ending, which a start would cancel; raises StoppedError."""
        state = await self._settled()
        if self._has_run and await self.is_stopped():
            raise self.stopped()
        return state

    async def is_dormant(self) -> bool:
        """Return whether it is dormant, once solo5-networkd has dealt with the end of its run."""
        until = asyncio.get_running_loop().time() + RETRY_TIMEOUT_S
        while True:
            state = await self._settled()
            runs = state is not None and not state.over
            record = await self._networks.record(self._name)
            if runs or record is None or record.waits or asyncio.get_running_loop().time() >= until:
                return record is not None and record.waits
            await asyncio.sleep(JOB_RETRY_S)

    async def is_stopped(self) -> bool:
        """Return whether the task was stopped on request, or removed, and does not run."""
        state = await self._units.state(self._name)
        if state is not None and not state.over:
            return False
        outcome = await self._outcome()
        return outcome is None or outcome.ending in REQUESTED

    async def is_over(self, run: Task) -> bool:
        """Return whether a run has ended without a failure. An old guest that has failed does not end the update."""
        state = await self._units.current(run.state)
        if state is not None and not state.over:
            return False
        outcome = await self._outcome()
        return outcome is None or outcome.clean

    async def _outcome(self) -> Outcome | None:
        """Return the outcome of the task's last run; None if the task was removed, and its unit loaded anew since."""
        with suppress(NoSuchTaskError):
            task = await self._runtime.task(self._name)
            return task.outcome if task.state.started else None
        return None

    def stopped(self) -> StoppedError:
        """Return the error of an update whose task was stopped."""
        return StoppedError(
            f"task {self._name} was stopped during its update: it stays stopped.",
            f"To repeat the update: systemctl start {self._name}, and then the same command.",
        )
