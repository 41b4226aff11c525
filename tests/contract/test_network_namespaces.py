"""Guests in a network namespace of other programs, as of a Nomad group in bridge mode."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, closing
from ipaddress import IPv4Address

import pytest
from tests.contract.guest import Guest
from tests.contract.netns import Outside, link, run
from tests.contract.netservice import Client, Service, host_state, nic, tcp, udp, until
from tests.contract.test_network_paths import ask_tcp, ask_udp
from tests.contract.test_network_policy import FORWARD, bound

from solo5_systemd.base.errors import HostError, TakenError
from solo5_systemd.base.names import DeviceName, TaskName
from solo5_systemd.network.drops import of_nics
from solo5_systemd.network.model import PortRequest, Reservation, dropped_by_namespace

NIC = (nic("service", "namespace"),)


@pytest.fixture
def group(outside: Outside) -> Iterator[Outside]:
    """The namespace of a group, whose address is 192.0.2.2; its gateway 192.0.2.1 is the host."""
    outside.ip("link", "set", "lo", "up")
    outside.ip("route", "add", "default", "via", outside.host)
    with outside.entered():
        before = host_state()
    yield outside
    with outside.entered():
        assert host_state() == before, "nothing of the service is left"


async def reserved(client: Client, group: Outside, task: str, *ports: PortRequest) -> Reservation:
    return await client.reserve(TaskName(task), NIC, ports, namespace=group.path)


@asynccontextmanager
async def guest(client: Client, group: Outside, task: str, *ports: PortRequest) -> AsyncIterator[Guest]:
    [lease] = (await reserved(client, group, task, *ports)).leases
    await client.attach(TaskName(task))
    with group.entered():
        opened = Guest(lease)
    async with opened:
        yield opened
    await client.drop(task)


async def test_a_guest_has_the_ports_of_its_namespace(service: Service, group: Outside) -> None:
    await service.restart()
    before = host_state()
    async with service.client() as client, guest(client, group, "web", tcp(8080), udp(5353)):
        assert host_state() == before, "the host has none of it"
        assert await ask_tcp(group.address, 8080) == b"HELLO"
        assert await ask_udp(group.address, 5353) == b"HELLO"
        with group.entered():
            for address in ("127.0.0.1", group.address):
                assert await ask_tcp(address, 8080) == b"HELLO"
                assert await ask_udp(address, 5353) == b"HELLO"


async def test_the_traffic_of_its_nic_is_counted(service: Service, group: Outside) -> None:
    await service.restart()
    async with service.client() as client, guest(client, group, "web") as web:
        await web.send_udp(IPv4Address(group.host), 9, b"out")
        [counted] = (await client.traffic())[TaskName("web")].values()
        assert counted.sent.packets > 0
        assert counted.received.packets > 0
    async with service.client() as client:
        assert TaskName("web") not in await client.traffic()


async def test_packets_that_its_filter_drops_are_counted_for_its_nic(service: Service, group: Outside) -> None:
    (service.settings / "own.toml").write_text(
        f'[network.namespace]\negress = ["{group.host}:9/udp"]\n[network.default]\nrate = ["sent-packets=10000"]\n'
    )
    await service.restart()
    async with service.client() as client:
        on_host = await client.lease("host")
        async with guest(client, group, "web") as web:
            for port in (9, 10, 11):
                await web.send_udp(IPv4Address(group.host), port, b"out")

            async def counted() -> Mapping[str, int]:
                counts = dropped_by_namespace(await client.networks())
                found = (await client.endpoints())[TaskName("web")]
                return of_nics(found.nics, counts[group.path])[DeviceName("service")]

            async with asyncio.timeout(10):
                while (await counted())["egress"] < 2:  # noqa: ASYNC110 - the packets are on their way
                    await asyncio.sleep(0.05)
            networks = {(each.namespace, str(each.name)): each for each in await client.networks()}
            assert networks.keys() == {("", "default"), ("", "namespace"), (group.path, "namespace")}
            assert networks["", "default"].leases == networks[group.path, "namespace"].leases == 1
            assert str(networks[group.path, "namespace"].policy.rate) == "sent-packets=10000"
        assert {each.namespace for each in await client.networks()} == {""}
        assert on_host.network == "default"
        await client.drop("host")


async def test_programs_beside_a_guest_are_at_its_gateway(service: Service, group: Outside) -> None:
    await service.restart()
    with group.entered():
        listeners = [bound("127.0.0.1", 9191), bound("0.0.0.0", 9192), bound(group.address, 9193)]
    async with service.client() as client, guest(client, group, "web") as web:
        for listener, to in zip(listeners, (web.gateway, web.gateway, IPv4Address(group.address)), strict=True):
            with closing(listener):
                port = listener.getsockname()[1]
                await web.send_udp(to, port, b"upstream")
                data, source = await asyncio.get_running_loop().sock_recvfrom(listener, 100)
                assert (data, source[0]) == (b"upstream", "127.0.0.1" if to == web.gateway else str(web.ip))
                listener.sendto(b"REPLY", source)
                assert await web.heard_udp(b"REPLY") == (to, port)
                web.frames.clear()


async def test_beyond_the_namespace_a_guest_has_its_address(service: Service, group: Outside) -> None:
    await service.restart()
    with closing(bound("0.0.0.0", 9)) as listener:
        async with service.client() as client, guest(client, group, "web") as web:
            await web.send_udp(IPv4Address(group.host), 9, b"out")
            data, source = await asyncio.get_running_loop().sock_recvfrom(listener, 100)
            assert (data, source[0]) == (b"out", group.address)


async def test_guests_of_one_namespace_reach_each_other(service: Service, group: Outside) -> None:
    await service.restart()
    async with service.client() as client, guest(client, group, "a") as a, guest(client, group, "b", tcp(80)) as b:
        assert await a.resolve(b.ip) == b.mac
        await a.send_udp(b.ip, 7, b"hello")
        assert await a.heard_udp(b"HELLO") == (b.ip, 7)


async def test_a_restarted_service_knows_its_namespaces(service: Service, group: Outside) -> None:
    await service.restart()
    async with service.client() as client:
        [lease] = (await reserved(client, group, "web", tcp(8080))).leases
        await client.attach(TaskName("web"))
        with group.entered():
            opened = Guest(lease)
        async with opened:
            service.kill()
            await service.restart()
            assert await ask_tcp(group.address, 8080) == b"HELLO"
            with group.entered():
                run("nft", "flush", "ruleset")
    async with service.client() as client:
        await client.collect(dry_run=False)
        assert await client.reservation(TaskName("web")) is not None
        await client.drop("web")


async def test_guests_are_not_released_if_their_namespace_cannot_be_restored(service: Service, group: Outside) -> None:
    """Another program's link has the name of their bridge, until it is deleted."""
    await service.restart()
    async with service.client() as client:
        [lease] = (await reserved(client, group, "web", tcp(8080))).leases
        await client.attach(TaskName("web"))
        service.kill()
        for words in (f"delete {lease.bridge}", f"add {lease.bridge} type veth peer name theirs"):
            group.ip("link", *words.split())
        await service.restart()
        await client.collect(dry_run=False)
        assert await client.reservation(TaskName("web")) is not None
        group.ip("link", "delete", lease.bridge)
        await client.collect(dry_run=False)
        async with Guest(lease):
            with group.entered():
                assert await ask_tcp("127.0.0.1", 8080) == b"HELLO"
        await client.drop("web")
    assert f"network namespace {group.path} cannot be restored" in service.log.read_text()


async def test_a_released_task_is_attached_in_its_namespace_again(service: Service, group: Outside) -> None:
    await service.restart()
    async with service.client() as client:
        [lease] = (await reserved(client, group, "web", tcp(8080))).leases
        await client.attach(TaskName("web"))
        await client.drop("web")
        await client.attach(TaskName("web"))
        with group.entered():
            assert link(lease.tap)
            async with Guest(lease):
                assert await ask_tcp("127.0.0.1", 8080) == b"HELLO"
        assert not link(lease.tap)
        await client.drop("web")


async def test_a_port_of_a_program_beside_is_taken(service: Service, group: Outside) -> None:
    await service.restart()
    with group.entered():
        listener = bound("0.0.0.0", 5353)
    async with service.client() as client:
        with closing(listener), pytest.raises(TakenError, match="port 5353/udp is taken by another process"):
            await reserved(client, group, "web", udp(5353))
        async with guest(client, group, "web", udp(5353)):
            with pytest.raises(TakenError, match="port 5353/udp is taken by task web"):
                await reserved(client, group, "other", udp(5353))


@pytest.mark.parametrize(
    "path", ["/run/netns/none", "/proc/self/ns/mnt", "/etc/passwd", "/etc", "/dev/null", "relative"]
)
async def test_what_is_no_namespace_is_refused(service: Service, path: str) -> None:
    await service.restart()
    async with service.client() as client:
        with pytest.raises(HostError, match="is no network namespace"):
            await client.reserve(TaskName("web"), NIC, (), namespace=path)
        assert await client.reservation(TaskName("web")) is None


async def test_a_namespace_that_is_gone_leaves_nothing(service: Service) -> None:
    await service.restart()
    group = Outside("gone", "198.51.100.1", "198.51.100.2")
    async with service.client() as client:
        await reserved(client, group, "web", tcp(8080))
        await client.attach(TaskName("web"))
        service.kill()
        group.close()
        await service.restart()
    async with service.client() as client:
        await client.drop("web")
        assert await client.reservation(TaskName("web")) is None


async def test_what_guests_have_in_a_namespace_is_not_what_the_host_has(service: Service, group: Outside) -> None:
    """Ports and taps of two namespaces are independent; ranges are not, so that guests reach the host's guests."""
    await service.restart()
    async with service.client() as client, guest(client, group, "web", tcp(8080)) as web:
        lease = await client.lease("other", tcp(8080))
        async with Guest(lease):
            assert lease.ipv4 is not None
            assert web.ip not in lease.ipv4.network
            assert await ask_tcp("127.0.0.1", 8080) == b"HELLO"
            await web.send_udp(IPv4Address(group.host), 8081, b"x")
        await client.drop("other")


async def test_what_other_programs_change_in_it_is_restored_at_once(service: Service, group: Outside) -> None:
    """Before the regular check, which is due after 20 s."""
    await service.restart("--shared-tables")
    async with service.client() as client, guest(client, group, "web", tcp(8080)) as web:
        changes: list[tuple[str, Callable[[], bool], str]] = [
            ("ip link set solo5-namespace down", lambda: is_up("solo5-namespace"), "bridge solo5-namespace"),
            (f"ip link set {web.tap} nomaster", lambda: link(web.tap).get("master") == "solo5-namespace", web.tap),
            ("ip address flush dev solo5-namespace", lambda: str(web.gateway) in shown(), "bridge solo5-namespace"),
            ("ip link delete solo5-namespace", lambda: is_up("solo5-namespace"), "bridge solo5-namespace"),
            (
                "sysctl -q -w net.ipv4.ip_forward=1 net.ipv4.ip_forward=0",
                lambda: (FORWARD.parent / "conf/lo/forwarding").read_text() == "1\n",
                "net.ipv4.conf.*.forwarding",
            ),
            ("nft flush ruleset", lambda: "solo5" in run("nft", "list", "tables"), "nftables"),
        ]
        for command, is_restored, what in changes:
            known = len(await client.recent_repairs())
            with group.entered():
                run(*command.split())
            await until(lambda check=is_restored: entered_holds(group, check), 15)  # type: ignore[misc]
            assert await ask_tcp(group.address, 8080) == b"HELLO", command
            async with asyncio.timeout(5):  # recorded a moment after it is restored, the last one first
                while not any(what in each.what for each in (await client.recent_repairs())[: -known or None]):
                    pass


def entered_holds(group: Outside, holds: Callable[[], bool]) -> bool:
    with group.entered():
        return holds()


def is_up(name: str) -> bool:
    return "UP" in link(name).get("flags", ())


def shown() -> str:
    return run("ip", "-o", "address", "show", "dev", "solo5-namespace")
