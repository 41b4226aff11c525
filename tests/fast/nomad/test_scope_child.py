"""The child that becomes a scope's tender reports its steps, and the error of a failed start."""

import os
import pickle
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from io import BytesIO, TextIOWrapper

import pytest
from tests.fakes.engine import FakeRuntime
from tests.fakes.images import preflight
from tests.fakes.tasks import LEASE

from solo5_systemd.engine.task import NoCallbacks, StartCallbacks, StartedScope
from solo5_systemd.errors import HostError, InvalidRequestError, NotFoundError, TakenError
from solo5_systemd.names import TaskName
from solo5_systemd.network.model import Protocol
from solo5_systemd.nomad.config.ready import GuestPort, Rule
from solo5_systemd.nomad.events import messages
from solo5_systemd.nomad.scope import child
from solo5_systemd.nomad.scope.protocol import ReportLine, ScopeEntered, StepBegun, decode
from solo5_systemd.settings import Settings
from solo5_systemd.workload import UnitKind, Workload

SETTINGS = Settings(tender_paths=("/opt/tenders",))
WORKLOAD = Workload(name=TaskName("web"), image="/srv/app", kind=UnitKind.SCOPE)


class Engine(FakeRuntime):
    """It has a tender that is not there, or fails before."""

    def __init__(self, failure: Exception | None = None) -> None:
        super().__init__()
        self.failure = failure

    async def start_scope(self, workload: Workload, pid: int, progress: StartCallbacks | None = None) -> StartedScope:
        progress = progress or NoCallbacks()
        progress.on_step("checking")
        progress.on_preflight(preflight())
        if self.failure is not None:
            raise self.failure
        progress.on_leases([LEASE])
        await super().start_scope(workload, pid)
        return StartedScope(argv=("/proc/self/no-tender",), invocation="ab" * 16, control_group="/web.scope")


@pytest.fixture(autouse=True)
def _signals(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child is this very process."""
    monkeypatch.setattr("solo5_systemd.host.execution.IGNORED_SIGNALS", ())


def reported(monkeypatch: pytest.MonkeyPatch, engine: Engine, rule: Rule | None = None) -> list[ReportLine]:
    """Return the report."""
    reading, writing = os.pipe()
    run(monkeypatch, engine, rule, writing)
    with open(reading, "rb") as report:  # noqa: PTH123 - a descriptor
        return [decode(line) for line in report]


def run(monkeypatch: pytest.MonkeyPatch, engine: Engine, rule: Rule | None, writing: int) -> None:
    @asynccontextmanager
    async def connect(settings: Callable[[], Settings]) -> AsyncGenerator[Engine, None]:
        assert settings() == SETTINGS
        yield engine

    monkeypatch.setattr(child, "connect", connect)
    monkeypatch.setattr(sys, "argv", ["child", str(writing)])
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(pickle.dumps((SETTINGS, WORKLOAD, rule)))))
    with pytest.raises(SystemExit) as exit_:
        child.main()
    os.close(writing)
    assert exit_.value.code == 125


def test_each_step_is_told_in_the_words_of_an_event_and_then_that_the_tender_is_executed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = Engine()
    assert reported(monkeypatch, engine)[:-1] == [
        StepBegun(doing="checking"),
        messages.preflight_passed(preflight()),
        messages.leases_attached([LEASE]),
        ScopeEntered(invocation="ab" * 16, control_group="/web.scope"),
    ]
    assert (engine.workloads, engine.calls) == ([WORKLOAD], [("scope", os.getpid())])


def test_a_tender_that_cannot_be_executed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    *_, last = reported(monkeypatch, Engine())
    assert isinstance(last, NotFoundError)
    assert last.sentence == "/proc/self/no-tender cannot be executed: No such file or directory."


def test_an_error_of_ours_is_told_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    *_, last = reported(monkeypatch, Engine(TakenError("port 80 is taken.", "Choose another.")))
    assert isinstance(last, TakenError)
    assert (last.sentence, last.hint) == ("port 80 is taken.", "Choose another.")


def test_what_nobody_foresaw_is_told_and_not_taken_for_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    *_, last = reported(monkeypatch, Engine(ZeroDivisionError("oops")))
    assert isinstance(last, HostError)
    assert last.sentence == "the task's tender was not executed: ZeroDivisionError('oops')."


def test_an_image_that_can_never_be_ready_is_refused_before_anything_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine()
    first, last = reported(monkeypatch, engine, Rule(condition=GuestPort(protocol=Protocol.TCP, name="80")))
    assert first == StepBegun(doing="checking")
    assert isinstance(last, InvalidRequestError)
    assert "the image has no NIC" in last.sentence
    assert engine.calls == []


def test_a_start_goes_on_though_the_driver_has_died(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine()
    reading, writing = os.pipe()
    os.close(reading)
    run(monkeypatch, engine, None, writing)
    assert engine.calls == [("scope", os.getpid())]
