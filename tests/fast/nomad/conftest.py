"""The driver on a machine in memory, and what an agent does with it."""

import json
import os
import sys
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest
from tests.fast.host.test_checks import GOOD
from tests.fast.nomad.agent import Agent, agent
from tests.fast.nomad.values import Fifos
from tests.support.fakes.backends import Machine

from solo5_systemd.engine import backends
from solo5_systemd.host import probe as probe_module
from solo5_systemd.host.checks import Host
from solo5_systemd.nomad import engine, housekeeping, tasks
from solo5_systemd.nomad import wait as wait_module
from solo5_systemd.settings.solo5_toml import Settings
from solo5_systemd.unit import translate


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    """What the driver finds when it connects; nothing of the real machine is read or written."""
    made = Machine()

    async def probe(*, settings: Settings, systemd: int | None) -> Host:
        async with made.steps.step("probe"):
            return GOOD

    monkeypatch.setattr(backends, "Backends", lambda _connection, _settings: made)
    monkeypatch.setattr(probe_module, "probe", probe)
    monkeypatch.setattr(engine, "CachedSettings", lambda: Settings)
    monkeypatch.setattr(housekeeping, "NETWORKS", tmp_path / "nomad.toml")
    monkeypatch.setattr(wait_module, "WATCH_INTERVAL_S", 0)
    monkeypatch.setattr(tasks, "RETRY_INTERVAL_S", 0)
    return made


@pytest.fixture
async def nomad(machine: Machine, no_task_left: None) -> AsyncGenerator[Agent, None]:
    """The agent of a test, with its plugin, which ends before it is checked that no asyncio task is left."""
    async with agent() as subject:
        yield subject


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


class Becomes:
    """Sets the program of the child that becomes the tender."""

    def __init__(self, directory: Path) -> None:
        self.program, self.output = directory / "tender", directory / "written"

    def __call__(self, does: str) -> None:
        """Write the program, which is not executed yet."""
        self.program.write_text(
            f"#!{sys.executable} -IS\nimport json, os, resource, signal, sys, time\n"
            f"def write(value): open({str(self.output)!r}, 'w').write(json.dumps(value))\n"
            f"{does}\n"
        )
        self.program.chmod(0o700)

    def written(self) -> object:
        """Return the value that it has written."""
        return json.loads(self.output.read_text())


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Becomes:
    """A program in the place of nsenter, setpriv and the tender."""
    becomes = Becomes(tmp_path)
    monkeypatch.setattr(translate, "scope_command", lambda *_: (str(becomes.program),))
    return becomes
