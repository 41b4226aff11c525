"""The tenders of scopes as children of the driver: start, wait, and undone failures."""

import asyncio
import os
import pickle
import sys
from pathlib import Path

import pytest
from tests.fakes.backends import Machine
from tests.fakes.background import Background
from tests.fast.nomad.agent import agent
from tests.fast.nomad.conftest import ENTERED, Becomes
from tests.fast.nomad.values import task_config

from solo5_systemd.engine.runtime import Runtime
from solo5_systemd.engine.task import Started
from solo5_systemd.errors import HostError, TakenError
from solo5_systemd.names import TaskName
from solo5_systemd.network.model import Reservation
from solo5_systemd.nomad.config.ready import ConsoleLine, Rule
from solo5_systemd.nomad.events.messages import TaskEvent
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.nomad.scope.parent import REPORT_LINE_MAX, ScopeChildren
from solo5_systemd.nomad.scope.protocol import ReportLine, StepBegun, encode
from solo5_systemd.settings import Settings
from solo5_systemd.workload import UnitKind, Workload

WEB = TaskName("web")
SETTINGS = Settings(tender_paths=("/opt/tenders",))
WORKLOAD = Workload(name=WEB, image="/srv/app", kind=UnitKind.SCOPE)
RULE = Rule(condition=ConsoleLine(pattern="ready"))


class Recorder:
    """A `ProgressSink` that records."""

    def __init__(self) -> None:
        self.lines: asyncio.Queue[ReportLine] = asyncio.Queue()

    def on_step(self, step: str) -> None:
        self.lines.put_nowait(StepBegun(doing=step))

    def publish(self, event: TaskEvent) -> None:
        self.lines.put_nowait(event)


async def start(scopes: ScopeChildren, engine: Runtime, sink: Recorder | None = None) -> Started:
    return await scopes.start(engine, SETTINGS, WORKLOAD, RULE, sink or Recorder())


@pytest.fixture
def engine(machine: Machine) -> Runtime:
    return Runtime(machine.backends)


@pytest.mark.parametrize(
    ("does", "status"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), signal.SIGTERM)", -15), ("sys.exit(0)", 0)]
)
async def test_the_end_of_a_child_is_known(engine: Runtime, child: Becomes, does: str, status: int) -> None:
    child(f"enter(); {does}")
    scopes = ScopeChildren()
    await start(scopes, engine)
    assert await scopes.wait(WEB) == status
    assert await scopes.wait(WEB) == status


async def test_the_child_is_given_settings_and_workload_and_nothing_else_of_ours(
    engine: Runtime, child: Becomes, tmp_path: Path
) -> None:
    child(
        "open(here + '/workload', 'wb').write(sys.stdin.buffer.read())\n"
        "held = [fd for fd in os.listdir('/proc/self/fd') if os.path.exists('/proc/self/fd/' + fd)]\n"
        "open(here + '/held', 'w').write(' '.join(sorted(held, key=int)))\n"
        "open(here + '/report', 'w').write(str(report))\n"
        "open(here + '/streams', 'w').write(os.readlink('/proc/self/fd/1') + os.readlink('/proc/self/fd/2'))\n"
        "enter()"
    )
    scopes = ScopeChildren()
    await start(scopes, engine)
    await scopes.wait(WEB)
    assert pickle.loads((tmp_path / "workload").read_bytes()) == (SETTINGS, WORKLOAD, RULE)
    assert (tmp_path / "held").read_text().split() == ["0", "1", "2", (tmp_path / "report").read_text()]
    assert (tmp_path / "streams").read_text() == "/dev/null" * 2


async def test_what_the_child_reports_is_heard_as_it_comes(
    machine: Machine, engine: Runtime, child: Becomes, tmp_path: Path
) -> None:
    steps: list[ReportLine] = [StepBegun(doing="reserving"), TaskEvent(message="NIC a", annotations={"a": "b"})]
    report = "; ".join(f"say({encode(each)!r})" for each in steps)
    child(f"{report}\nwhile not os.path.exists(here + '/go'): time.sleep(0.01)\nenter()")
    machine.networks.held[WEB] = Reservation(task=WEB)
    sink, scopes = Recorder(), ScopeChildren()
    async with asyncio.TaskGroup() as group:
        starting = group.create_task(start(scopes, engine, sink))
        assert [await sink.lines.get() for _ in steps] == steps
        assert not starting.done()
        (tmp_path / "go").touch()
    await scopes.wait(WEB)
    started = starting.result()
    assert (started.unit, started.invocation) == ("solo5-task-web.scope", ENTERED.invocation)
    assert (started.control_group, started.reservation) == (ENTERED.control_group, Reservation(task=WEB))


@pytest.mark.parametrize("before", ["", f"say({encode(ENTERED)!r}); "])
async def test_an_error_of_the_child_is_the_starts_own(engine: Runtime, child: Becomes, before: str) -> None:
    child(f"{before}say({encode(TakenError('port 80 is taken.', 'Choose another.'))!r})")
    scopes = ScopeChildren()
    with pytest.raises(TakenError, match="port 80 is taken. Choose another."):
        await start(scopes, engine)
    assert await scopes.wait(WEB) is None


@pytest.mark.parametrize(
    "does",
    [
        "say(b'oops')",
        f"say(b' ' * {2 * REPORT_LINE_MAX})",
        f"say({encode(StepBegun(doing='x'))!r}); os.kill(os.getpid(), 9)",
    ],
    ids=["nonsense", "no end", "killed before it could"],
)
async def test_a_child_that_does_not_say_that_it_executes_the_tender_has_failed_and_nothing_of_it_is_left(
    machine: Machine, engine: Runtime, child: Becomes, does: str
) -> None:
    child(does)
    machine.networks.held[WEB] = Reservation(task=WEB)
    with pytest.raises(HostError, match="ended without a valid report"):
        await start(ScopeChildren(), engine)
    assert machine.holds == (set(), set())


async def test_a_start_that_is_called_off_kills_its_child_and_leaves_nothing(
    machine: Machine, engine: Runtime, child: Becomes, tmp_path: Path
) -> None:
    child("open(here + '/pid', 'w').write(str(os.getpid()))\ntime.sleep(60)")
    async with Background(start(ScopeChildren(), engine)) as starting:
        pid = await _written(tmp_path / "pid")
    assert starting.cancelled()
    assert not _lives(int(pid))
    assert machine.holds == (set(), set())


async def _written(file: Path) -> str:
    for _ in range(1000):
        await asyncio.sleep(0.01)
        if file.exists() and (text := file.read_text()):
            return text
    raise AssertionError(f"{file} was not written")


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_child_that_cannot_be_started_is_told(
    engine: Runtime, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    with pytest.raises(HostError, match="cannot be started: No such file or directory"):
        await start(ScopeChildren(), engine)


async def test_what_is_no_child_has_no_end_here() -> None:
    scopes = ScopeChildren()
    assert await scopes.wait(WEB) is None
    scopes.forget(WEB)


async def test_a_tender_that_ended_before_anybody_could_look_is_a_task_that_ended(
    machine: Machine, child: Becomes
) -> None:
    child("enter(); sys.exit(3)")
    async with agent() as nomad:
        started = await nomad.start(task_config(unit="scope"))
        assert started.handle.state == wire.RUNNING
        ended = await nomad.wait()
        assert (ended.result.exit_code, ended.err) == (3, "")
        await nomad.destroy()
    assert machine.holds == (set(), set())
