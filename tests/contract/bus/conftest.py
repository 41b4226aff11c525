from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.contract.bus.fake_systemd import FakeSystemd, pid1
from tests.contract.netservice import PrivateBus
from tests.support.fakes.attributes import Attributes
from tests.support.settled import no_task_left, pytest_configure, pytest_itemcollected, pytest_runtest_call

from solo5_systemd.bus import connection as connection_module
from solo5_systemd.bus import manager as manager_module
from solo5_systemd.bus import unit_states
from solo5_systemd.bus.connection import Connection, system_bus
from solo5_systemd.bus.manager import Manager
from solo5_systemd.cgroup import hierarchy

__all__ = ["no_task_left", "pytest_configure", "pytest_itemcollected", "pytest_runtest_call"]


@pytest.fixture(autouse=True)
def address(bus: PrivateBus, monkeypatch: pytest.MonkeyPatch) -> str:
    """Use the private bus as the system bus."""
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", bus.address)
    return bus.address


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the interval of retries while PID 1 is off the bus."""
    for module in (manager_module, connection_module):
        monkeypatch.setattr(module, "RETRY_INTERVAL_S", 0.01)


@pytest.fixture
async def systemd(address: str) -> AsyncIterator[FakeSystemd]:
    async with pid1(address) as systemd:
        yield systemd


@pytest.fixture
async def connection(address: str) -> AsyncIterator[Connection]:
    async with system_bus() as connection:
        yield connection


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of units of a host without any."""
    (tmp_path / "units").mkdir()
    (tmp_path / "cgroup").mkdir()
    (tmp_path / "cgroup/cgroup.procs").touch()
    monkeypatch.setattr(unit_states, "UNITS", str(tmp_path / "units"))
    monkeypatch.setattr(hierarchy, "MOUNT", tmp_path / "cgroup")
    Attributes(monkeypatch)


@pytest.fixture
def manager(connection: Connection, files: None) -> Manager:
    return Manager(connection)
