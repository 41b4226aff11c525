"""An in-memory PID 1, with the tenders that it runs."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from tests.support.fakes.steps import Steps, step

from solo5_systemd.base.errors import NoSuchTaskError, TakenError
from solo5_systemd.base.names import TaskName, UnitKind, outcome_target, task_of_unit
from solo5_systemd.bus.manager import Manager
from solo5_systemd.bus.peers import JobCanceledError, JobConflictError, JobFailedError
from solo5_systemd.task.properties import Property, TransientUnit
from solo5_systemd.unit.state import ActiveState, MainCode, UnitState

SIGKILL = 9


class FakeUnits(Manager):
    """PID 1."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._changed = asyncio.Event()
        self._clock = 100
        self._kept: set[str] = set()
        self.loaded: dict[str, UnitState] = {}  # loaded task units
        self.started: list[TransientUnit] = []  # units of all `start` calls
        self.sent: list[tuple[str, int, bool]] = []  # all signals: unit, number, whether to the whole cgroup
        self.forgotten: list[str] = []  # units of all `reset_failed` calls
        self.confined: dict[str, Sequence[Property]] = {}  # the last properties of each slice
        self.job_result = "done"  # result of start jobs
        self.ended_at_once: tuple[int, int] = (MainCode.NONE, 0)  # code and status, before the start job, which fails
        self.heeds: tuple[int, ...] = (2, 15)  # signals on which a tender ends, besides SIGKILL
        self.busy = False  # stop jobs are queued and not run
        self.refused = False  # the last start of each unit failed an assertion
        self.canceled = False  # a stop of the operator's takes the place of each restart
        self.stopped_before = False  # a stop of the operator's is handled before each restart
        self.conflicts = 0  # so many restarts find a stop of the operator's enqueued, which PID 1 begins then

    # --- calls ------------------------------------------------------------------------------------

    async def start(self, unit: TransientUnit, stdin: int | None = None, stderr: int | None = None) -> UnitState:
        async with self._steps.step("start unit"):
            if unit.name in self.loaded:
                raise TakenError(f"unit {unit.name} exists already.")
            self.started.append(unit)
            made = self._made(unit)
            if self.job_result != "done":
                code, status = self.ended_at_once
                ended = made._replace(active=ActiveState.FAILED, main_code=code, main_status=status)
                self.put(ended._replace(main_pid=0, control_group=""))
                raise JobFailedError(unit.name, self.job_result)
            self.put(made)
        return made

    async def stop(self, unit: str) -> None:
        async with self._steps.step(f"stop {unit}"):
            self._kept.discard(unit)
            self._unload()
            state = self.loaded.get(unit)
            if state is None or state.over:
                return
            for _ in range(20):
                await asyncio.sleep(0)  # a job is queued before it runs
            if not self.busy:
                self._begin_to_stop(unit)
            while unit in self.loaded and not self.loaded[unit].over:
                await self._changed.wait()

    async def kill(self, unit: str, number: int, *, everyone: bool) -> None:
        async with self._steps.step(f"kill {unit}"):
            self.sent.append((unit, number, everyone))
            if number in self.heeds or (number == SIGKILL and everyone):
                self.end(unit, MainCode.KILLED, number)

    async def reset_failed(self, units: Sequence[str]) -> None:
        async with self._steps.step("reset_failed"):
            self.forgotten += units
            for state in [self.loaded[unit] for unit in units if unit in self.loaded]:
                if state.active is ActiveState.FAILED:
                    self.put(state._replace(active=ActiveState.INACTIVE))

    ensure_started = step("require {}")
    begin = step("begin {}")
    was_refused = step("was_refused", "refused")
    reload_time_left = step("reload_time_left")
    reload = step("reload")
    dependents = step("dependents {}", result=())
    is_shutting_down = step("is_shutting_down", result=False)
    version = step("version", result="257.7-1")

    async def restart(self, unit: str, *, running: bool = False) -> None:
        async with self._steps.step(f"restart {unit}"):
            if self.conflicts:
                self.conflicts -= 1
                if not self.conflicts:
                    self._begin_to_stop(unit)
                raise JobConflictError(f"{unit} is not started again.")
            if self.stopped_before:
                self._begin_to_stop(unit)
            state = self.loaded[unit]
            if running and state.over:
                return
            if self.canceled:
                self._begin_to_stop(unit)
                raise JobCanceledError(f"{unit} was stopped before it was started again.")
            self.end(unit, MainCode.EXITED, 0)
            again = state._replace(invocation=f"{state.invocation}-again", main_pid=state.main_pid + 1)
            self.put(again._replace(active=ActiveState.ACTIVE))

    async def set_properties(self, slice_unit: str, properties: Sequence[Property]) -> None:
        async with self._steps.step(f"confine {slice_unit}"):
            self.confined[slice_unit] = properties

    async def freeze(self, unit: str) -> None:
        async with self._steps.step("freeze"):
            self._freeze(unit, frozen=True)

    async def thaw(self, unit: str) -> None:
        async with self._steps.step("thaw"):
            self._freeze(unit, frozen=False)

    async def release(self) -> int:
        return 257

    async def is_taken(self, task: TaskName) -> bool:
        async with self._steps.step("is_taken"):
            return self.seen(task) is not None

    async def is_running(self, task: TaskName) -> bool:
        async with self._steps.step("is_running"):
            state = self.seen(task)
            return state is not None and not state.over

    async def state(self, task: TaskName) -> UnitState | None:
        async with self._steps.step("state"):
            return self.seen(task)

    async def states(self, *, ended: bool = True) -> Sequence[UnitState]:
        async with self._steps.step("states"):
            return tuple(state for state in self.loaded.values() if ended or not state.over)

    async def names(self, *, ended: bool = True) -> Sequence[TaskName]:
        async with self._steps.step("names"):
            return [state.task for state in self.loaded.values() if ended or not state.over]

    async def outcome_targets(self) -> frozenset[TaskName]:
        async with self._steps.step("outcome_targets"):
            kept = (unit.partition("@")[2].removesuffix(".target") for unit in self._kept)
            return frozenset(map(TaskName, kept))

    async def changed(self, run: UnitState, timeout_s: float | None = None) -> UnitState | None:
        async with self._steps.step("watch"):
            pass
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.seen(run.task) == run:
                    await self.change()
        return self.seen(run.task)

    async def current(self, state: UnitState) -> UnitState | None:
        async with self._steps.step("current"):
            return self.seen(state.task)

    async def active_state(self, unit: str) -> ActiveState:
        async with self._steps.step("active_state"):
            return self.loaded[unit].active if unit in self.loaded else ActiveState.INACTIVE

    async def change(self) -> None:
        """Wait until a unit comes, changes or goes."""
        await self._changed.wait()

    # --- what happens by itself ------------------------------------------------------------------------------

    def seen(self, task: TaskName) -> UnitState | None:
        return next((state for state in self.loaded.values() if state.task == task), None)

    def put(self, state: UnitState) -> None:
        """A unit comes, or changes."""
        self.loaded[state.unit] = state
        self._unload()

    def end(self, unit: str, code: int, status: int, result: str = "") -> None:
        """The main process ends, if it has not yet."""
        state = self.loaded.get(unit)
        if state is None or state.over:
            return
        clean = (code, status) in ((MainCode.EXITED, 0), (MainCode.KILLED, 15), (MainCode.KILLED, 2))
        now = self._now()
        self.put(
            state._replace(
                active=ActiveState.INACTIVE if clean or state.kind is UnitKind.SCOPE else ActiveState.FAILED,
                result=result or ("success" if clean else "exit-code" if code == MainCode.EXITED else "signal"),
                main_pid=0,
                main_code=code,
                main_status=status,
                main_exit=now,
                active_exit=state.active_exit or now,
                ended=now,
            )
        )

    def vanish(self, unit: str) -> None:
        """Unload a unit, even if a target refers to it."""
        del self.loaded[unit]
        self._tell()

    def _made(self, unit: TransientUnit) -> UnitState:
        task = task_of_unit(unit.name)
        assert task is not None
        self._kept |= {outcome_target(task)} if unit.value("Wants") == [outcome_target(task)] else set()
        fields = unit.value("LogExtraFields") or []
        assert isinstance(fields, list)
        now = self._now()
        return UnitState(
            task=task,
            unit=unit.name,
            active=ActiveState.ACTIVE,
            invocation=f"{now:032x}",
            main_pid=now if unit.name.endswith(".service") else 0,
            started=now,
            control_group=f"/solo5.slice/{unit.name}",
            log_fields={**dict(field.decode().split("=", 1) for field in fields), **unit.marks},
        )

    def _begin_to_stop(self, unit: str) -> None:
        state = self.loaded.get(unit)
        if state is None or state.over:
            return
        self.put(state._replace(active=ActiveState.DEACTIVATING, active_exit=self._now()))
        if 15 in self.heeds:
            self.end(unit, MainCode.KILLED, 15)

    def _unload(self) -> None:
        """Unload inactive units that no outcome target refers to."""
        for unit, state in list(self.loaded.items()):
            if state.active is ActiveState.INACTIVE and outcome_target(state.task) not in self._kept:
                del self.loaded[unit]
        self._tell()

    def _freeze(self, unit: str, *, frozen: bool) -> None:
        if unit not in self.loaded:
            raise NoSuchTaskError(f"unit {unit} is not loaded.")
        self.put(self.loaded[unit]._replace(frozen=frozen))

    def _now(self) -> int:
        self._clock += 1
        return self._clock

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
