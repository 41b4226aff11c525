"""The engine on a machine in memory, for whoever asks for it; and what holds for every test here."""

import asyncio
import inspect
import os
from contextlib import suppress
from pathlib import Path

import pytest
from tests.support.fakes.backends import Machine
from tests.support.fakes.clock import LeapingPolicy
from tests.support.settled import no_task_left, pytest_configure, pytest_itemcollected, pytest_runtest_call

from solo5_systemd.base import locks, own_files
from solo5_systemd.base.event_loop import is_event_loop
from solo5_systemd.engine.runtime import Runtime
from solo5_systemd.journal import console
from solo5_systemd.storage import locks as storage_locks

__all__ = ["no_task_left", "pytest_configure", "pytest_itemcollected", "pytest_runtest_call"]

# What gates a change is the same each time; `make fuzz` takes other examples, and more (--hypothesis-profile=fuzz).
# How long an example takes depends on what else the machine does; the test's own timeout is the limit.
with suppress(ModuleNotFoundError):  # in a test machine, where only those run that do without
    from hypothesis import HealthCheck, settings

    _UNHURRIED = settings(deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("gate", _UNHURRIED, derandomize=True, max_examples=50)
    examples = int(os.environ.get("FUZZ_EXAMPLES", "1000"))
    settings.register_profile("fuzz", _UNHURRIED, max_examples=examples, print_blob=True)
    settings.load_profile("gate")


@pytest.fixture(scope="session", autouse=True)
def own_files_below_tmp(tmp_path_factory: pytest.TempPathFactory) -> None:
    """In the place of root and `/`: the caller, and the directory of all tests, since /tmp is everybody's."""
    top = tmp_path_factory.getbasetemp()
    top.chmod(0o755)
    own_files.ROOT, own_files.TOP = os.geteuid(), str(top)
    os.umask(0o022)


@pytest.fixture(autouse=True)
def consoles_are_stored(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """In the place of the machine's journald."""

    async def problem(namespace: str = "") -> str:
        return ""

    if "real_journal" not in request.fixturenames:
        monkeypatch.setattr(console, "storage_problem", problem)


@pytest.fixture
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    """What pytest-asyncio makes a test's event loop with."""
    leaps = request.node.get_closest_marker("leaps") is not None
    return LeapingPolicy() if leaps else asyncio.DefaultEventLoopPolicy()


def _is_awaited_by(part: str) -> bool:
    """Whether the innermost coroutine that runs now is of such a file; a verb of `solo5ctl` has nothing else to do."""
    frame = inspect.currentframe()
    while frame is not None and not frame.f_code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        frame = frame.f_back
    file = frame.f_code.co_filename if frame is not None else part
    return part in file and f"{part}cli/" not in file


@pytest.fixture(autouse=True)
def no_wait_in_an_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that another process could have is waited for in a thread: an event loop makes one attempt."""
    real = locks.lock

    def lock(descriptor: int, path: Path, *, shared: bool = False, timeout_s: float = locks.TIMEOUT_S) -> None:
        if timeout_s and is_event_loop():
            assert not _is_awaited_by("solo5_systemd/"), f"an event loop would wait for {path}"
        real(descriptor, path, shared=shared, timeout_s=timeout_s)

    monkeypatch.setattr(locks, "lock", lock)


@pytest.fixture(autouse=True, name="locks")
def disk_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the locks of disks, of this test alone."""
    monkeypatch.setattr(storage_locks, "LOCKS", tmp_path / "locks")
    return tmp_path / "locks"


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def runtime(machine: Machine) -> Runtime:
    return Runtime(machine.backends)
