"""An in-memory engine that records its calls and returns preset results."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from functools import cached_property

from tests.support.fakes.backends import Machine
from tests.support.fakes.tasks import ended, endpoints, running

from solo5_systemd.base.errors import NoSuchTaskError, NotFoundError, Solo5Error
from solo5_systemd.base.names import TaskName
from solo5_systemd.engine.gc import Collector
from solo5_systemd.engine.orphans import Orphan
from solo5_systemd.engine.plan import Plan
from solo5_systemd.engine.queries import with_disks
from solo5_systemd.engine.runtime import Runtime
from solo5_systemd.engine.start import Starter
from solo5_systemd.engine.task import QUIET, Phase, Sample, StartCallbacks, Task
from solo5_systemd.journal.lines import Line
from solo5_systemd.network.endpoints import Endpoints
from solo5_systemd.network.model import LeaseRecord
from solo5_systemd.task.workload import Workload
from solo5_systemd.unit.outcome import Ending, Outcome

STOPPED = Outcome(ending=Ending.STOPPED, exit_code=1, sentence="stopped on request")
KILLED = Outcome(ending=Ending.KILLED, signal=9, sentence="killed by SIGKILL")


class FakeCollector(Collector):
    """A garbage collection."""

    def __init__(self, calls: list[tuple[object, ...]]) -> None:
        self.found: tuple[Orphan, ...] = ()  # result of `orphans`
        self.removed: tuple[str, ...] = ()  # result of `collect`
        self._calls = calls

    async def orphans(self) -> tuple[Orphan, ...]:
        return self.found

    async def collect(self, *, dry_run: bool) -> tuple[str, ...]:
        self._calls.append(("collect", dry_run))
        return self.removed


class FakeStarter(Starter):
    """The previews of an engine."""

    def __init__(self, engine: "FakeRuntime") -> None:
        self._engine = engine

    async def check_declared(self, workload: Workload) -> None:
        if sentence := self._engine.faults.get(workload.name):
            raise NotFoundError(sentence)

    async def preview(self, workload: Workload) -> Plan:
        self._engine.workloads.append(workload)
        assert self._engine.plan is not None
        return self._engine.plan


class FakeRuntime(Runtime):
    """An engine whose operations on tasks return preset results; its backends are fakes."""

    def __init__(self, *tasks: Task) -> None:
        self.machine = Machine()  # the backends
        super().__init__(self.machine.backends)
        self.known = {task.name: task for task in tasks}
        for task in tasks:
            self.machine.units.put(task.state)
        self.workloads: list[Workload] = []  # started or previewed workloads, in order
        self.calls: list[tuple[object, ...]] = []  # all other calls, in order
        self.outcome = ended().outcome  # of a started task; None: it runs until it is stopped or killed
        self.refusal: Solo5Error | None = None  # error of a start
        self.pause_s = 0.0125  # of a snapshot
        self.lines: Sequence[Line] = ()  # console of every task
        self.rounds: Iterator[Mapping[TaskName, Sample]] = iter(())  # result of each `samples`
        self.plan: Plan | None = None
        self.listens = False  # a running task ends on a stop request
        self.dormant: Sequence[LeaseRecord] = ()
        self.awake: dict[TaskName, str] = {}
        self.on_start: Callable[[], None] | None = None  # called during a start, which then never returns
        self.on_console: Callable[[], None] = lambda: None  # called when the console has been read to its end
        self.faults: Mapping[str, str] = {}  # why a declared task could not start, by its name
        self._over = asyncio.Event()

    @cached_property
    def starter(self) -> "FakeStarter":
        return FakeStarter(self)

    @cached_property
    def gc(self) -> "FakeCollector":
        return FakeCollector(self.calls)

    async def tasks(self, *, ended: bool = True, reservations: bool = True) -> tuple[Task, ...]:
        found = [self.known[name] for name in await self.names(ended=ended)]
        return tuple(task if reservations else task._replace(reservation=None) for task in found)

    async def endpoints(self) -> Mapping[TaskName, Endpoints]:
        found = {
            task.name: endpoints(task.reservation)._replace(asleep=task.asleep)
            for task in self.known.values()
            if task.reservation
        }
        for each in self.dormant:
            waits = endpoints(each.reservation)._replace(asleep=each.asleep, waits=True)
            found[each.reservation.task] = waits
        return found

    async def waiting(self) -> Sequence[LeaseRecord]:
        return self.dormant

    async def names(self, *, ended: bool = True) -> tuple[TaskName, ...]:
        return tuple(sorted(n for n, task in self.known.items() if ended or task.phase is not Phase.ENDED))

    async def task(self, name: TaskName) -> Task:
        if name not in self.known:
            raise NoSuchTaskError(f"no task is named {name!r}.", "List them: solo5ctl ps --all")
        return self.known[name]

    async def start(self, workload: Workload, progress: StartCallbacks = QUIET) -> Task:
        if self.refusal is not None:
            raise self.refusal
        if self.on_start is not None:
            self.on_start()
            await asyncio.Event().wait()
        self.workloads.append(workload)
        self.known[workload.name] = running(workload.name)
        if self.outcome is not None:
            self._end(workload.name, self.outcome)
        return self.known[workload.name]

    async def stop(self, name: TaskName, *, signal: int = 15, timeout_s: float = 10) -> Task:
        await self.task(name)
        self.calls.append(("stop", name, signal, timeout_s))
        if self.outcome is not None or self.listens:
            self._end(name, STOPPED)
        await self._over.wait()
        return self.known[name]

    async def kill(self, name: TaskName, number: int) -> None:
        await self.task(name)
        self.calls.append(("kill", name, number))
        self._end(name, KILLED)

    async def remove(self, name: TaskName, *, force: bool = False) -> None:
        await self.task(name)
        self.calls.append(("remove", name, force))
        del self.known[name]

    async def wait(self, name: TaskName) -> Task:
        return await self.task(name)

    async def awake_because(self, task: Task) -> str:
        return self.awake.get(task.name, "")

    async def while_frozen(
        self, name: TaskName, act: Callable[[], None], before: Callable[[], None] = lambda: None
    ) -> float:
        self.calls.append(("while frozen", name))
        await self.task(name)
        act()
        return self.pause_s

    async def samples(self, *, drops: bool = False, disks: bool = False) -> Mapping[TaskName, Sample]:
        assert drops in (False, True)
        found = next(self.rounds, {})
        return with_disks(found) if disks else found

    async def console(self, task: Task, *, last: int | None = None) -> AsyncGenerator[Line, None]:
        self.calls.append(("console", task.name, last))
        for line in self.lines:
            yield line

    async def follow(self, task: Task, *, last: int | None = None) -> AsyncGenerator[Line, None]:
        self.calls.append(("follow", task.name, last))
        for line in self.lines:
            yield line
        self.on_console()
        if self.known[task.name].phase is not Phase.ENDED:
            await self._over.wait()

    def _end(self, name: TaskName, outcome: Outcome) -> None:
        self.known[name] = ended(name, outcome)
        self._over.set()
