"""A network is released at the end of its task, which no caller reports, and attached again by a start of systemd."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.contract.netns import link, run
from tests.contract.netservice import Client, Pid1, Service, host_state, nic, pid1, tcp, udp, until
from tests.contract.test_network_life import _rewrite

from solo5_systemd.base.errors import InvalidRequestError, NotFoundError, TakenError
from solo5_systemd.base.names import TaskName
from solo5_systemd.network.model import Reservation

WEB = TaskName("web")
UNITS = pytest.mark.parametrize("unit", ["solo5-task-web.service", "solo5-task-web.scope"])
UNIT = "solo5-task-web.service"
QUICK = ("--poll", "0.2")
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
    async with pid1(service, Pid1(service)) as manager:
        manager.begin(UNIT)
    manager.end(UNIT)
    await moment()
    assert record(service).exists()
    async with pid1(service, Pid1(service)):
        await released(service)


_WITHOUT_INOTIFY = """
import errno
from solo5_systemd.base import inotify

def refused():
    raise OSError(errno.EMFILE, "Too many open files")

inotify._inotify = refused
"""


async def test_where_inotify_has_reached_a_limit_ends_are_noticed_nevertheless(service: Service, manager: Pid1) -> None:
    async with service.running(None, *QUICK, change=_WITHOUT_INOTIFY) as client:
        await client.lease("web")
        manager.begin(UNIT)
        service.kill()
        _rewrite(record(service), expires=0)
        await service.restart(*QUICK, change=_WITHOUT_INOTIFY)
        await moment()
        assert record(service).exists()
        manager.end(UNIT)
        await released(service)
    assert "inotify: " in service.log.read_text()


# -- attach of a task that was released: a start by systemd alone, for which no caller has reserved anything ---------


A = TaskName("a")
TWO_NETWORKS = '[network.default]\nipv4 = "10.77.0.0/24"\n[network.back]\nipv4 = "10.78.0.0/24"\n'


async def _released(client: Client) -> Reservation:
    nics = (nic("service", ip="10.77.0.9"), nic("admin", "back"))
    had = await client.have("a", tcp(8080), udp(5353, host_ip="127.0.0.1"), nics=nics)
    await client.drop("a")
    return had


def _bind_fails(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


@pytest.fixture
def networks(service: Service) -> Service:
    service.configure(TWO_NETWORKS)
    return service


@pytest.mark.parametrize("killed", [False, True], ids=["nothing", "kill"])
async def test_a_released_task_has_all_that_it_had(networks: Service, killed: bool) -> None:
    async with networks.running() as client:
        nics = (nic("service", ip="10.77.0.9"), nic("admin", "back"))
        had = await client.have("a", tcp(8080), udp(5353, host_ip="127.0.0.1"), nics=nics)
        before = host_state()
        await client.drop("a")
        assert (await client.reservation(A), _bind_fails(8080)) == (None, False)
        if killed:
            networks.kill()
            await networks.restart()
        await client.attach(A)
        assert await client.reservation(A) == had
        assert host_state() == before
        assert _bind_fails(8080)
        again = await client.reserve(A, nics, had.ports)
        assert again == had, "the request is known as the same"
        await client.drop("a")
        await client.forget(A)
        with pytest.raises(NotFoundError, match="task a has no reservation"):
            await client.attach(A)


async def test_what_is_taken_meanwhile_is_named_and_nothing_is_left(networks: Service) -> None:
    async with networks.running() as client:
        await _released(client)
        before = host_state()
        for task, nics, ports, words in (
            ("b", (nic("service"),), (tcp(8080),), "port 8080/tcp is taken by task b"),
            ("b", (nic("service", ip="10.77.0.9"),), (), "address 10.77.0.9 for NIC service is taken by task b"),
        ):
            await client.have(task, *ports, nics=nics)
            beside = host_state()
            with pytest.raises(TakenError, match=words):
                await client.attach(A)
            assert ([held.task for held in await client.reservations()], host_state()) == ([task], beside)
            await client.drop(task)
        with socket.socket() as other:
            other.bind(("127.0.0.1", 8080))
            other.listen()
            with pytest.raises(TakenError, match="port 8080/tcp is taken by another process"):
                await client.attach(A)
        assert (await client.reservations(), host_state()) == ((), before)
        await client.attach(A)
    assert host_state() == before


async def test_changed_settings_are_an_error_and_nothing_is_left(networks: Service) -> None:
    changes: list[tuple[str, type[Exception], str]] = [
        (TWO_NETWORKS.replace("10.78", "10.79"), InvalidRequestError, "is outside network back: expected one in 10.79"),
        (TWO_NETWORKS + "mtu = 1400\n", TakenError, "task a cannot have its network again"),
        (TWO_NETWORKS.partition("[network.back]")[0], InvalidRequestError, "network back does not exist"),
        ("reserved_ports = [8080]\n" + TWO_NETWORKS, InvalidRequestError, "port 8080/tcp cannot be published"),
    ]
    async with networks.running() as client:
        await _released(client)
        before = host_state()
        for settings, error, words in changes:
            networks.configure(settings)
            with pytest.raises(error, match=words):
                await client.attach(A)
            assert (await client.reservations(), host_state()) == ((), before)
            assert list(networks.state.glob("networks/*")) == []


async def test_a_link_with_the_name_of_its_tap_is_left_alone(networks: Service) -> None:
    async with networks.running() as client:
        had = await _released(client)
        run("ip", "link", "add", had.leases[0].tap, "type", "bridge")
        before = host_state()
        with pytest.raises(TakenError, match="its tap or the settings of its network have changed"):
            await client.attach(A)
        assert (await client.reservations(), host_state()) == ((), before)
        run("ip", "link", "delete", had.leases[0].tap)


async def test_an_attached_task_has_its_record_and_its_tap_again(service: Service, client: Client) -> None:
    """Removed by other programs, while the service did not run."""
    had, other = await client.have("a", tcp(8080)), await client.have("b")
    before = host_state()
    (service.state / "tasks/a.json").unlink()
    await client.attach(A)
    assert await client.reservation(A) == had
    (service.state / "tasks/a.json").unlink()
    service.kill()
    run("ip", "link", "delete", had.leases[0].tap)
    await service.restart()
    await client.attach(A)
    assert (await client.reservation(A), await client.reservation(TaskName("b"))) == (had, other)
    assert host_state() == before


async def test_a_release_that_was_interrupted_is_ended_first(service: Service, client: Client) -> None:
    had = await client.have("a", tcp(8080))
    before = host_state()
    service.kill()
    _rewrite(service.state / "tasks/a.json", state="releasing")
    await service.restart()
    await client.attach(A)
    assert (await client.reservation(A), host_state()) == (had, before)


async def test_a_service_that_is_killed_during_an_attach_leaves_a_complete_network_or_none(service: Service) -> None:
    async with service.running() as client:
        had = await client.have("a", tcp(8080))
    for _ in range(5):
        async with service.client() as client:
            attaching = asyncio.ensure_future(client.attach(A))
            await until(lambda: (service.state / "tasks/a.json").exists())
            service.kill()
            attaching.cancel()
            await service.restart()
            await client.attach(A)
            assert await client.reservation(A) == had
            await client.drop("a")
            assert await client.reservation(A) is None
