"""The process that becomes a scope's tender tells the driver what keeps it from it."""

import json
import os
import pickle
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from io import BytesIO, TextIOWrapper

import pytest
from tests.fakes.engine import FakeRuntime

from solo5_systemd.errors import TakenError
from solo5_systemd.names import TaskName
from solo5_systemd.nomad import child
from solo5_systemd.settings import Settings
from solo5_systemd.workload import UnitKind, Workload

SETTINGS = Settings(tender_paths=("/opt/tenders",))
WORKLOAD = Workload(name=TaskName("web"), image="/srv/app", kind=UnitKind.SCOPE)


class Engine(FakeRuntime):
    """It has a tender that is not there, or fails before."""

    def __init__(self, failure: Exception | None = None) -> None:
        super().__init__()
        self.failure = failure

    async def start_scope(self, workload: Workload, pid: int) -> tuple[str, ...]:
        if self.failure is not None:
            raise self.failure
        await super().start_scope(workload, pid)
        return ("/proc/self/no-tender", "--", workload.image)


def told(monkeypatch: pytest.MonkeyPatch, engine: Engine) -> dict[str, str]:
    """What the driver reads."""

    @asynccontextmanager
    async def connect(settings: Callable[[], Settings]) -> AsyncGenerator[Engine, None]:
        assert settings() == SETTINGS
        yield engine

    reading, writing = os.pipe()
    monkeypatch.setattr(child, "connect", connect)
    monkeypatch.setattr(sys, "argv", ["child", str(writing)])
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(pickle.dumps((SETTINGS, WORKLOAD)))))
    with pytest.raises(SystemExit) as exit_:
        child.main()
    os.close(writing)
    with open(reading) as report:  # noqa: PTH123 - a descriptor
        words = json.load(report)
    assert exit_.value.code == 125
    assert isinstance(words, dict)
    return words


def test_a_tender_that_cannot_be_executed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine()
    assert told(monkeypatch, engine) == {
        "name": "org.solo5.Error.NotFound",
        "sentence": "/proc/self/no-tender cannot be executed: No such file or directory.",
        "hint": "",
    }
    assert (engine.workloads, engine.calls) == ([WORKLOAD], [("scope", os.getpid())])


def test_an_error_of_ours_is_told_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    words = told(monkeypatch, Engine(TakenError("port 80 is taken.", "Choose another.")))
    assert words == {"name": TakenError.dbus_name, "sentence": "port 80 is taken.", "hint": "Choose another."}


def test_what_nobody_foresaw_is_told_and_not_taken_for_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    words = told(monkeypatch, Engine(ZeroDivisionError("oops")))
    assert words["sentence"] == "the task's tender was not reached: ZeroDivisionError('oops')."
    assert words["name"] == "org.solo5.Error.Host"
