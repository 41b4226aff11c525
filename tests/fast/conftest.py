"""The engine on a machine in memory, for whoever asks for it; and what holds for every test here."""

import asyncio
import os
from contextlib import suppress

import pytest
from tests.support.fakes.backends import Machine
from tests.support.fakes.clock import LeapingPolicy
from tests.support.settled import no_task_left, pytest_configure, pytest_itemcollected, pytest_runtest_call

from solo5_systemd.engine.runtime import Runtime
from solo5_systemd.files import own_files

__all__ = ["no_task_left", "pytest_configure", "pytest_itemcollected", "pytest_runtest_call"]

# What gates a change is the same each time; `make fuzz` takes other examples, and more (--hypothesis-profile=fuzz).
# How long an example takes depends on what else the machine does; the test's own timeout is the limit.
with suppress(ModuleNotFoundError):  # in a test machine, where only those run that do without
    from hypothesis import HealthCheck, settings

    _UNHURRIED = settings(deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("gate", _UNHURRIED, derandomize=True)
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


@pytest.fixture
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    """What pytest-asyncio makes a test's event loop with."""
    leaps = request.node.get_closest_marker("leaps") is not None
    return LeapingPolicy() if leaps else asyncio.DefaultEventLoopPolicy()


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def runtime(machine: Machine) -> Runtime:
    return Runtime(machine.backends)
