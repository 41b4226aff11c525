"""Tenders in scopes are the driver's children: started, waited for, and never left half-way."""

import asyncio
import json
import os
import pickle
import sys
from pathlib import Path

import pytest
from tests.fakes.backends import Machine
from tests.fakes.background import Background
from tests.fast.nomad.agent import agent
from tests.fast.nomad.conftest import Becomes
from tests.fast.nomad.values import task_config

from solo5_systemd.errors import HostError, TakenError
from solo5_systemd.names import TaskName
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.nomad.scopes import Scopes
from solo5_systemd.runtime import Runtime
from solo5_systemd.settings import Settings
from solo5_systemd.workload import UnitKind, Workload

WEB = TaskName("web")
SETTINGS = Settings(tender_paths=("/opt/tenders",))
WORKLOAD = Workload(name=WEB, image="/srv/app", kind=UnitKind.SCOPE)


@pytest.fixture
def engine(machine: Machine) -> Runtime:
    return Runtime(machine.backends)


@pytest.mark.parametrize(
    ("does", "status"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), signal.SIGTERM)", -15), ("sys.exit(0)", 0)]
)
async def test_the_end_of_a_child_is_known(engine: Runtime, child: Becomes, does: str, status: int) -> None:
    child(f"os.close(report); {does}")
    scopes = Scopes()
    await scopes.start(engine, SETTINGS, WORKLOAD)
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
        "open(here + '/streams', 'w').write(os.readlink('/proc/self/fd/1') + os.readlink('/proc/self/fd/2'))"
    )
    scopes = Scopes()
    await scopes.start(engine, SETTINGS, WORKLOAD)
    await scopes.wait(WEB)
    assert pickle.loads((tmp_path / "workload").read_bytes()) == (SETTINGS, WORKLOAD)
    assert (tmp_path / "held").read_text().split() == ["0", "1", "2", (tmp_path / "report").read_text()]
    assert (tmp_path / "streams").read_text() == "/dev/null" * 2


async def test_an_error_of_the_child_is_the_starts_own(engine: Runtime, child: Becomes) -> None:
    words = {"name": TakenError.dbus_name, "sentence": "port 80 is taken.", "hint": "Choose another."}
    child(f"os.write(report, {json.dumps(words).encode()!r})")
    scopes = Scopes()
    with pytest.raises(TakenError, match="port 80 is taken. Choose another."):
        await scopes.start(engine, SETTINGS, WORKLOAD)
    assert await scopes.wait(WEB) is None


@pytest.mark.parametrize("said", [b"oops", b"{}", b'{"name": "x", "sentence": "", "hint": ""}', b"[1]", b"3"])
async def test_an_answer_that_nobody_understands_is_a_failure(engine: Runtime, child: Becomes, said: bytes) -> None:
    child(f"os.write(report, {said!r})")
    with pytest.raises(HostError, match="failed in a way that nobody foresaw"):
        await Scopes().start(engine, SETTINGS, WORKLOAD)


async def test_a_start_that_is_called_off_kills_its_child_and_leaves_nothing(
    machine: Machine, engine: Runtime, child: Becomes, tmp_path: Path
) -> None:
    child("open(here + '/pid', 'w').write(str(os.getpid()))\ntime.sleep(60)")
    async with Background(Scopes().start(engine, SETTINGS, WORKLOAD)) as starting:
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
        await Scopes().start(engine, SETTINGS, WORKLOAD)


async def test_what_is_no_child_has_no_end_here() -> None:
    scopes = Scopes()
    assert await scopes.wait(WEB) is None
    scopes.forget(WEB)


async def test_a_tender_that_ended_before_anybody_could_look_is_a_task_that_ended(
    machine: Machine, child: Becomes
) -> None:
    child("os.close(report); sys.exit(3)")
    async with agent() as nomad:
        started = await nomad.start(task_config(unit="scope"))
        assert started.handle.state == wire.RUNNING
        ended = await nomad.wait()
        assert (ended.result.exit_code, ended.err) == (3, "")
        await nomad.destroy()
    assert machine.holds == (set(), set())
