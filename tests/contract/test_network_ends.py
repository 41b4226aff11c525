"""A network is released at the end of its task, which no caller reports."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.contract.netns import link, run
from tests.contract.netservice import Client, Pid1, Service, nic, pid1, tcp, until
from tests.contract.test_network_life import _rewrite

from solo5_systemd.base.names import TaskName

WEB = TaskName("web")
UNITS = pytest.mark.parametrize("unit", ["solo5-task-web.service", "solo5-task-web.scope"])
UNIT = "solo5-task-web.service"
QUICK = ("--end-check", "0.2")
"""Options of a service that looks more often than each second whether a unit that ended has a job still."""


@pytest.fixture
async def client(service: Service) -> AsyncIterator[Client]:
    async with service.running(None, *QUICK) as client:
        yield client


def record(service: Service) -> Path:
    return service.state / "tasks/web.json"


async def released(service: Service) -> None:
    await until(lambda: not record(service).exists())
    assert "s5-" not in run("ip", "-o", "link", "show")


async def moment() -> None:
    """Give the service time for what it must not do."""
    await asyncio.sleep(0.5)


@UNITS
async def test_an_end_releases_the_network(client: Client, service: Service, manager: Pid1, unit: str) -> None:
    await client.lease("web", tcp(8080))
    manager.begin(unit)
    manager.begin(unit)  # a link that is replaced
    await moment()
    assert record(service).exists()
    assert manager.calls == 0
    manager.end(unit)
    await released(service)
    assert manager.calls == 1


async def test_ends_of_other_units_cost_no_message(client: Client, service: Service, manager: Pid1) -> None:
    await client.lease("web")
    manager.begin(UNIT)
    for unit in ("ssh.service", "solo5-task-other.service", "solo5-network@web.service", "solo5-task-.service"):
        manager.begin(unit)
        manager.end(unit)
    (service.units / "log-extra-fields:x.service").symlink_to("x")
    (service.units / "log-extra-fields:x.service").unlink()
    await moment()
    assert (record(service).exists(), manager.calls) == (True, 0)
    manager.end(UNIT)
    await released(service)


async def test_a_unit_that_is_restarted_keeps_its_network(client: Client, service: Service, manager: Pid1) -> None:
    lease = await client.lease("web", tcp(8080))
    manager.begin(UNIT)
    first = link(lease.tap)["ifindex"]
    manager.jobs.add(UNIT)  # systemctl restart
    manager.end(UNIT)
    await until(lambda: manager.calls > 1)
    await moment()
    assert link(lease.tap)["ifindex"] == first
    await client.attach(WEB)  # its network unit, which makes the tap of the last tender anew
    second = link(lease.tap)["ifindex"]
    manager.begin(UNIT)
    manager.jobs.clear()
    await moment()
    assert link(lease.tap)["ifindex"] == second
    manager.end(UNIT)
    await released(service)


async def test_a_restart_that_is_cancelled_releases_its_network(
    client: Client, service: Service, manager: Pid1
) -> None:
    await client.lease("web")
    manager.begin(UNIT)
    manager.end(UNIT)
    manager.active.add(UNIT)  # activating (auto-restart): without a link
    await moment()
    assert record(service).exists()
    manager.active.clear()
    await released(service)


async def test_a_start_right_after_an_end_gets_a_network_of_its_own(
    client: Client, service: Service, manager: Pid1
) -> None:
    await client.lease("web", tcp(8080))
    for port in range(8081, 8086):
        manager.begin(UNIT)
        manager.end(UNIT)
        await client.reserve(WEB, (nic("service"),), (tcp(port),))
        await client.attach(WEB)
    manager.begin(UNIT)
    await moment()
    [held] = await client.reservations()
    assert [each.host_port for each in held.ports] == [8085], "no earlier end has released it"
    manager.end(UNIT)
    await released(service)


async def test_a_start_in_progress_keeps_its_network_also_when_the_service_is_killed(
    client: Client, service: Service, manager: Pid1
) -> None:
    await client.lease("web")
    service.kill()
    await service.restart(*QUICK)
    await moment()
    assert record(service).exists()
    manager.begin(UNIT)
    manager.end(UNIT)
    await released(service)


async def test_an_attached_network_without_a_run_is_released_after_the_time_of_a_start(
    client: Client, service: Service, manager: Pid1
) -> None:
    await client.lease("web")
    service.kill()
    _rewrite(record(service), expires=json.loads(record(service).read_text())["expires"] - 8)
    await service.restart(*QUICK)
    await moment()
    assert record(service).exists()
    await released(service)


async def test_an_end_while_the_service_is_dead_is_noticed_by_the_next_one(
    client: Client, service: Service, manager: Pid1
) -> None:
    await client.lease("web")
    manager.begin(UNIT)
    service.kill()
    manager.end(UNIT)
    _rewrite(record(service), expires=0)
    await service.restart(*QUICK)
    await released(service)


async def test_an_end_while_pid_1_does_not_reply_is_looked_at_again(client: Client, service: Service) -> None:
    await client.lease("web")
    async with pid1(service) as manager:
        manager.begin(UNIT)
    manager.end(UNIT)
    await moment()
    assert record(service).exists()
    async with pid1(service):
        await released(service)


_WITHOUT_INOTIFY = """
import errno, sys
from solo5_systemd.base import inotify
from solo5_systemd.networkd import main as program

def refused():
    raise OSError(errno.EMFILE, "Too many open files")

inotify._inotify = refused
sys.exit(program.main())
"""


async def test_where_inotify_has_reached_a_limit_ends_are_noticed_nevertheless(service: Service, manager: Pid1) -> None:
    service.start(*QUICK, program=("-c", _WITHOUT_INOTIFY))
    await service.ready()
    async with service.client() as client:
        await client.lease("web")
        manager.begin(UNIT)
        service.kill()
        _rewrite(record(service), expires=0)
        service.start(*QUICK, program=("-c", _WITHOUT_INOTIFY))
        await service.ready()
        await moment()
        assert record(service).exists()
        manager.end(UNIT)
        await released(service)
    assert "inotify: " in service.log.read_text()
