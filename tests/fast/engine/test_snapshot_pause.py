"""A task is thawed after every end of a pause."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.fakes.backends import Machine

from solo5_systemd.base.errors import HostError, TakenError
from solo5_systemd.base.locks import LockedError, lock_directory
from solo5_systemd.base.names import TaskName
from solo5_systemd.engine import snapshot_pause
from solo5_systemd.engine.runtime import Runtime
from solo5_systemd.task.workload import Workload
from solo5_systemd.unit.state import MainCode

WEB = TaskName("web")
UNIT = "solo5-task-web.service"
GUARD = "solo5-thaw@solo5-task-web.service.service"


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(snapshot_pause, "PAUSES", tmp_path / "pauses")
    return tmp_path / "pauses"


@pytest.fixture
async def web(runtime: Runtime, machine: Machine, directory: Path) -> Runtime:
    await runtime.start(Workload(name=WEB, image="/srv/app"))
    machine.steps.taken.clear()
    return runtime


def nothing() -> None:
    """Do nothing."""


def names(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


def is_frozen(machine: Machine) -> bool:
    return machine.units.loaded[UNIT].frozen


async def test_a_pause_is_guarded_before_it_begins(machine: Machine, web: Runtime, directory: Path) -> None:
    seen: list[tuple[str, bool, list[str]]] = []

    def note(when: str) -> Callable[[], None]:
        return lambda: seen.append((when, is_frozen(machine), names(directory)))

    assert await web.while_frozen(WEB, note("act"), note("before")) >= 0.0
    assert [each[:2] for each in seen] == [("before", False), ("act", True)]
    assert seen[1][2] == [UNIT]
    assert not is_frozen(machine)
    order = [step for step in machine.steps.taken if step in (f"require {GUARD}", "freeze", "thaw", f"stop {GUARD}")]
    assert order == [f"require {GUARD}", "freeze", "thaw", f"stop {GUARD}"]
    assert (directory.stat().st_mode & 0o777, names(directory)) == (0o700, [])


@pytest.mark.parametrize("step", [f"require {GUARD}", "freeze", "thaw"])
async def test_an_error_of_systemd_leaves_a_thaw_to_the_guard_and_else_nothing_frozen(
    machine: Machine, web: Runtime, step: str
) -> None:
    machine.steps.errors[step] = HostError("the bus broke.")
    with pytest.raises(HostError, match="the bus broke"):
        await web.while_frozen(WEB, nothing)
    assert is_frozen(machine) is (step == "thaw")
    assert (f"stop {GUARD}" in machine.steps.taken) is (step != f"require {GUARD}")


@pytest.mark.parametrize("when", ["before", "within"])
async def test_an_error_before_or_within_the_pause_leaves_nothing_frozen(
    machine: Machine, web: Runtime, when: str
) -> None:
    def fail() -> None:
        raise HostError("no space.")

    acts = (nothing, fail) if when == "before" else (fail, nothing)
    with pytest.raises(HostError, match="no space"):
        await web.while_frozen(WEB, *acts)
    assert ("freeze" in machine.steps.taken) is (when == "within")
    assert not is_frozen(machine)


@pytest.mark.parametrize(
    ("act", "sentence"),
    [
        (lambda machine: machine.units._freeze(UNIT, frozen=False), "task web was thawed meanwhile"),
        (lambda machine: machine.units.end(UNIT, MainCode.KILLED, 9), "task web has ended meanwhile"),
    ],
)
async def test_a_task_that_does_not_stay_frozen_is_an_error(
    machine: Machine, web: Runtime, act: Callable[[Machine], None], sentence: str
) -> None:
    machine.steps.errors["thaw"] = HostError("Unit is not frozen.")
    with pytest.raises(HostError, match=sentence):
        await web.while_frozen(WEB, lambda: act(machine))


async def test_a_task_that_was_frozen_before_stays_frozen(machine: Machine, web: Runtime) -> None:
    await web.freeze(WEB)
    assert await web.while_frozen(WEB, nothing) == 0.0
    assert is_frozen(machine)
    assert "thaw" not in machine.steps.taken


async def test_one_process_at_a_time(machine: Machine, web: Runtime, directory: Path) -> None:
    directory.mkdir(mode=0o700)
    descriptor = os.open(directory / UNIT, os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(TakenError, match="is frozen for another snapshot"):
        await web.while_frozen(WEB, nothing)
    os.close(descriptor)
    assert "freeze" not in machine.steps.taken


async def test_no_other_pause_removes_a_lock_file_between_its_creation_and_its_lock(
    web: Runtime, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep of another process waits for the directory, which is locked meanwhile."""
    real, kept = fcntl.flock, []

    def locking(descriptor: Any, how: int) -> None:
        number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        if Path(f"/proc/self/fd/{number}").readlink() == directory / UNIT:
            with pytest.raises(LockedError):
                lock_directory(directory, timeout_s=0.0)
            kept.append(descriptor)
        real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", locking)
    await web.while_frozen(WEB, nothing)
    assert len(kept) == 1
    assert not list(directory.iterdir())


async def test_a_lock_file_that_was_removed_meanwhile_is_no_lock(
    web: Runtime, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of another pause removes it, and so does its thaw unit."""
    real = fcntl.flock

    def locking(descriptor: Any, how: int) -> None:
        (directory / UNIT).unlink(missing_ok=True)
        real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", locking)
    with pytest.raises(TakenError, match="is frozen for another snapshot"):
        await web.while_frozen(WEB, nothing)


async def test_a_lock_that_cannot_be_made_is_one_sentence(web: Runtime, directory: Path) -> None:
    directory.write_text("no directory")
    with pytest.raises(HostError, match="pauses.* cannot be created"):
        await web.while_frozen(WEB, nothing)


async def test_the_file_of_a_killed_process_is_removed_by_the_next_pause(web: Runtime, directory: Path) -> None:
    directory.mkdir(mode=0o700)
    for name in ("killed", "held"):
        (directory / name).touch(0o600)
    with (directory / "held").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        await web.while_frozen(WEB, nothing)
    assert names(directory) == ["held"]
