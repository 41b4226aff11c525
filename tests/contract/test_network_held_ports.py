"""Port sockets: another process that binds a published port gets EADDRINUSE."""

import errno
import socket
from collections.abc import Callable
from contextlib import closing

import pytest
from tests.contract.guest import Guest
from tests.contract.netns import Outside, run
from tests.contract.netservice import Service, nic, tcp, udp
from tests.contract.test_network_paths import ask_tcp, ask_udp

from solo5_systemd.base.errors import TakenError
from solo5_systemd.base.names import TaskName
from solo5_systemd.networkd.held_ports import bind

KINDS = {"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM}
OPTIONS = (0, socket.SO_REUSEADDR, socket.SO_REUSEPORT)


def refused(kind: str, port: int, address: str = "0.0.0.0", option: int = 0) -> bool:
    """Return whether bind(2) fails with EADDRINUSE."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, KINDS[kind]) as late:
        if option:
            late.setsockopt(socket.SOL_SOCKET, option, 1)
        try:
            late.bind((address, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return True
        return False


async def test_a_published_port_is_bound_until_it_is_released(service: Service) -> None:
    async with service.running() as client:
        ports = (tcp(8500), udp(8500), tcp(8501, host_ip="127.0.0.1"), udp(8501, host_ip="127.0.0.1"))
        async with Guest(await client.lease("a", *ports)):
            for option in OPTIONS:
                for kind in KINDS:
                    for address in ("0.0.0.0", "127.0.0.1", "::"):
                        assert refused(kind, 8500, address, option)
                    for address in ("0.0.0.0", "127.0.0.1"):
                        assert refused(kind, 8501, address, option)
                    assert not refused(kind, 8501, "127.0.0.2", option), "published at one address"
                    assert not refused(kind, 8502, "0.0.0.0", option)
            for port in (8500, 8501):
                assert await ask_tcp("127.0.0.1", port) == b"HELLO"
                assert await ask_udp("127.0.0.1", port) == b"HELLO"
            service.kill()
            await service.restart()
            assert refused("tcp", 8500)
        await client.drop("a")
        assert not any(refused(kind, port) for kind in KINDS for port in (8500, 8501))


_WITH_STORED = """
import os, socket, sys
from solo5_systemd.networkd import main as program

names = [f"u{port}" for port in range(30000, 31100)]
for _ in names:
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).detach()
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(names)), "LISTEN_FDNAMES": ":".join(names)}
sys.exit(program.main())
"""
"""The service with more descriptors in the store than select(2) has bits for."""


async def test_more_published_ports_than_select_has_bits_for_survive_a_restart(service: Service) -> None:
    """libnftables calls select(2), which aborts the process where its socket has a number of 1024 or more."""
    async with service.running() as client:
        await client.lease("a", udp(8500))
        service.kill()
        service.start(program=("-c", _WITH_STORED))
        await service.ready()
        assert refused("udp", 8500)
        for number in range(5):
            await client.lease(f"b{number}", *(udp(20000 + 256 * number + offset) for offset in range(256)))
        await client.attach(TaskName("a"))  # with 1280 ports bound


async def test_a_port_that_a_process_has_bound_and_does_not_listen_at_is_not_published(service: Service) -> None:
    await service.restart()
    with closing(socket.socket()) as early:
        early.bind(("127.0.0.1", 8500))
        async with service.client() as client:
            with pytest.raises(TakenError, match="port 8500/tcp is taken by another process or a connection"):
                await client.reserve(TaskName("a"), (nic("service"),), (udp(8400), tcp(8500)))
            assert not refused("udp", 8400), "none of a request that failed stays bound"
            assert await client.reservations() == ()


async def test_a_process_that_was_quicker_than_a_restart_keeps_the_port_and_is_reported(service: Service) -> None:
    async with service.running() as client:
        await client.lease("a", tcp(8500))
        service.kill()
        with closing(socket.socket()) as early:
            early.bind(("127.0.0.1", 8500))
            await service.restart()
            assert "cannot bind published port 8500/tcp: another process has bound it" in service.log.read_text()


@pytest.mark.parametrize("make", [tcp, udp])
def test_a_socket_that_holds_a_port_answers_nothing_and_keeps_nothing(
    namespace: None, make: Callable[..., object]
) -> None:
    """Without rules, as between a flush and its repair, the port socket has no effect on clients."""
    port = make(8500)
    with closing(bind(port)) as held:  # type: ignore[arg-type]
        with socket.socket() as client, pytest.raises(ConnectionRefusedError):
            client.connect(("127.0.0.1", 8500))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            for _ in range(1000):
                client.sendto(b"x" * 1000, ("127.0.0.1", 8500))
        held.setblocking(False)
        with pytest.raises(OSError, match="") as nothing:
            held.recv(1)
        assert nothing.value.errno in (errno.EAGAIN, errno.ENOTCONN)


async def test_of_a_range_all_ports_are_bound_or_none(service: Service) -> None:
    ports = [make(8600 + number, 80 + number) for make in (tcp, udp) for number in range(100)]
    async with service.running() as client:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
            taken.bind(("0.0.0.0", 8650))
            with pytest.raises(TakenError, match="port 8650/udp is taken by another process"):
                await client.lease("a", *ports)
            assert not any(refused(kind, port) for kind in KINDS for port in range(8600, 8700) if port != 8650)
        await client.lease("b", tcp(8699))
        with pytest.raises(TakenError, match="port 8699/tcp is taken by task b"):
            await client.lease("a", *ports)
        assert not refused("tcp", 8600)
        await client.drop("b")
        await client.lease("a", *ports)
        assert all(refused(kind, port) for kind in KINDS for port in range(8600, 8700))
        await client.drop("a")
        assert not any(refused(kind, port) for kind in KINDS for port in range(8600, 8700))


async def test_a_port_at_an_address_that_the_host_gets_later(service: Service, outside: Outside) -> None:
    """Such as keepalived's, which comes and goes while the guest runs, and is not there at its start."""
    async with service.running() as client, Guest(await client.lease("a", udp(5301, host_ip="192.0.2.99"))):
        for _ in range(2):
            run("ip", "address", "add", "192.0.2.99/32", "dev", f"{outside.link}-in")
            assert await ask_udp("192.0.2.99", 5301) == b"HELLO"
            run("ip", "address", "del", "192.0.2.99/32", "dev", f"{outside.link}-in")
