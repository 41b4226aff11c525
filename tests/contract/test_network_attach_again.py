"""Attach of a task that was released: a start by systemd alone, for which no caller has reserved anything."""

import asyncio
import socket

import pytest
from tests.contract.netns import run
from tests.contract.netservice import Client, Service, host_state, nic, tcp, udp, until
from tests.contract.test_network_life import _rewrite

from solo5_systemd.base.errors import InvalidRequestError, NotFoundError, TakenError
from solo5_systemd.base.names import TaskName
from solo5_systemd.network.model import Reservation

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
    (service.settings / "solo5.toml").write_text(TWO_NETWORKS)
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
    await networks.restart()
    async with networks.client() as client:
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
        await client.drop("a")
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
            (networks.settings / "solo5.toml").write_text(settings)
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


async def test_an_attached_task_has_its_record_and_its_tap_again(service: Service) -> None:
    """Removed by other programs, while the service did not run."""
    async with service.running() as client:
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


async def test_a_release_that_was_interrupted_is_ended_first(service: Service) -> None:
    async with service.running() as client:
        had = await client.have("a", tcp(8080))
        before = host_state()
        service.kill()
        _rewrite(service.state / "tasks/a.json", state="releasing")
        await service.restart()
        await client.attach(A)
        assert (await client.reservation(A), host_state()) == (had, before)


async def test_the_request_of_a_reservation_that_expired_is_removed(service: Service) -> None:
    await service.restart()
    async with service.client() as client:
        await client.reserve(A, (nic("service"),), ())
        assert (service.state / "requests/a.json").exists()
    service.kill()
    _rewrite(service.state / "tasks/a.json", expires=0)
    await service.restart()
    await until(lambda: not list(service.state.rglob("*.json")))


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
