"""The driver on a machine in memory, and what an agent does with it."""

import os
import sys
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.fakes.backends import Machine
from tests.fast.host.test_facts import GOOD
from tests.fast.nomad.values import Fifos

from solo5_systemd.host.facts import Host
from solo5_systemd.nomad.scope.protocol import ScopeEntered, encode
from solo5_systemd.settings import Settings

Becomes = Callable[[str], None]
ENTERED = ScopeEntered(invocation="ab" * 16, control_group="/solo5.slice/scope")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    """What the driver finds when it connects; nothing of the real machine is read or written."""
    made = Machine()

    @asynccontextmanager
    async def connect(_: Callable[[], Settings]) -> AsyncGenerator[Machine, None]:
        async with made.steps.step("connect"):
            pass
        yield made

    async def probe(*, settings: Settings, systemd: int | None) -> Host:
        async with made.steps.step("probe"):
            return GOOD

    monkeypatch.setattr("solo5_systemd.wiring.machine", connect)
    monkeypatch.setattr("solo5_systemd.host.probe.probe", probe)
    monkeypatch.setattr("solo5_systemd.settings_files.read_settings", Settings)
    monkeypatch.setattr("solo5_systemd.nomad.gc.loops.NETWORKS", tmp_path / "nomad.toml")
    monkeypatch.setattr("solo5_systemd.nomad.wait.RETRY_INTERVAL_S", 0)
    monkeypatch.setattr("solo5_systemd.nomad.task.registry.RETRY_INTERVAL_S", 0)
    return made


@pytest.fixture
def fifos(tmp_path: Path) -> Generator[Fifos, None, None]:
    """Those that Nomad made for a task's console, with their reader."""
    paths = tmp_path / "stdout", tmp_path / "stderr"
    for path in paths:
        os.mkfifo(path)
    ends = [os.open(path, os.O_RDONLY | os.O_NONBLOCK) for path in paths]
    yield Fifos(*map(str, paths))
    for end in ends:
        os.close(end)


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Becomes:
    """Set the program of the child that becomes the tender; `here` is a directory, `report` its file descriptor.

    `say` writes a report line, and `enter` the last one: the child executes the tender.
    """
    program = tmp_path / "child"

    def becomes(does: str) -> None:
        program.write_text(
            f"#!{real} -IS\nimport os, signal, sys, time\nreport, here = int(sys.argv[4]), {str(tmp_path)!r}\n"
            "def say(line): os.write(report, line)\n"
            f"def enter(): say({encode(ENTERED)!r}); os.close(report)\n"
            f"{does}\n"
        )
        program.chmod(0o700)

    real = sys.executable
    monkeypatch.setattr(sys, "executable", str(program))
    return becomes
