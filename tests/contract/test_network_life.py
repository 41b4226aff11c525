"""The life of reservations, leases and remembered addresses, also with a killed service."""

import array
import asyncio
import fcntl
import json
import random
import socket
import struct
import subprocess
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from ipaddress import IPv4Network
from pathlib import Path

import pytest
from tests.contract.guest import Guest
from tests.contract.netns import HOST6, Outside, entered, link, run
from tests.contract.netservice import NAME, PATH, Client, Pid1, Service, host_state, nic, pid1, tcp, udp, until
from tests.contract.sockets import ask_udp

from solo5_systemd.base.errors import HostError, InvalidRequestError, NotFoundError, TakenError
from solo5_systemd.base.names import TaskName
from solo5_systemd.network.model import PortRequest
from solo5_systemd.network.netlink import link_index
from solo5_systemd.network.remembered_addresses import LastRequest, write_request


async def test_a_network_has_the_mtu_of_the_uplink(service: Service, outside: Outside) -> None:
    """As of a host whose default route is a tunnel's, but for a network that sets its own."""
    run("ip", "link", "set", "veth-in", "mtu", "1420")
    run("ip", "route", "add", "default", "via", outside.address)
    async with service.running("[network.large]\nmtu = 9000\n[network.six]\nipv6 = true\n") as client:
        assert {network.name: network.mtu for network in await client.networks()} == {
            "default": 1420, "large": 9000, "six": 1420,
        }  # fmt: skip
        lease = await client.lease("a")
        assert (lease.mtu, link(lease.tap)["mtu"], link(lease.bridge)["mtu"]) == (1420, 1420, 1420)
        assert {network.mtu for network in await client.networks() if network.name == "default"} == {1420}
    run("ip", "route", "del", "default")


async def test_tap_and_bridge_are_as_a_tender_needs_them(client: Client) -> None:
    lease = await client.lease("a")
    tap, bridge = link(lease.tap), link(lease.bridge)
    inside = link(lease.tap, "a")
    assert tap["master"] == lease.bridge
    assert tap["ifalias"] == "solo5 task a NIC service"
    assert tap["mtu"] == bridge["mtu"] == 1500
    assert "UP" in tap["flags"]
    assert "UP" in inside["flags"]
    assert inside["mtu"] == 1500
    assert inside["linkinfo"]["info_data"]["persist"]
    assert inside["linkinfo"]["info_data"]["user"] == "nobody"
    assert "group" not in inside["linkinfo"]["info_data"]
    assert (bridge["linkinfo"]["info_data"]["stp_state"], bridge["linkinfo"]["info_data"]["forward_delay"]) == (
        0,
        0,
    )
    for name in (lease.tap, lease.bridge):
        assert run("ip", "-6", "address", "show", "dev", name) == ""
    for namespace in ("/proc/self/ns/net", "/run/netns/solo5-a"):
        with entered(namespace):
            assert _offload(lease.tap, ETHTOOL_GGRO) == _offload(lease.tap, ETHTOOL_GGSO) == 0


async def test_an_address_that_another_guest_had_is_not_sent_to_its_mac(service: Service) -> None:
    """The kernel would ask for it eight seconds later: five in which the entry is trusted, and three probes."""
    async with service.running("[network.default]\nipv6 = true\n") as client:
        other = await client.lease("other")
        lease = (await client.reserve(TaskName("a"), (nic("service"),), ())).leases[0]
        assert len(lease.addresses) == 2
        # The kernel would remove them with the carrier of the bridge, which it looks at up to a second later.
        for family, name in (("ipv4", "arp_evict_nocarrier"), ("ipv6", "ndisc_evict_nocarrier")):
            Path(f"/proc/sys/net/{family}/conf/{lease.bridge}/{name}").write_text("0")
        for address in (*lease.addresses, *other.addresses):
            run("ip", "neigh", "replace", str(address), "lladdr", "02:0:0:0:0:9", "dev", lease.bridge, "nud", "stale")
        await client.attach(TaskName("a"))
        listed = run("ip", "neigh", "show", "dev", lease.bridge).split()
        assert {*map(str, other.addresses)} <= {*listed}
        assert {*map(str, lease.addresses)}.isdisjoint(listed)
        await client.drop("a")
        for address in lease.addresses:  # as an operator pins it
            run("ip", "neigh", "replace", str(address), "lladdr", lease.mac, "dev", lease.bridge, "nud", "permanent")
        await client.lease("a")
        listed = run("ip", "neigh", "show", "nud", "permanent", "dev", lease.bridge).split()
        assert {*map(str, lease.addresses)} <= {*listed}


@pytest.mark.parametrize("kind", [("tuntap", "add", "mode", "tap"), ("link", "add", "type", "bridge")])
async def test_a_link_that_took_the_name_of_a_tap_is_replaced(client: Client, kind: tuple[str, ...]) -> None:
    """A tap without an owner is open to every user of the host."""
    lease = (await client.reserve(TaskName("a"), (nic("service"),), ())).leases[0]
    run("ip", *kind[:2], lease.tap, *kind[2:])
    await client.attach(TaskName("a"))
    assert link(lease.tap)["linkinfo"]["info_kind"] == "macvlan"
    assert link(lease.tap)["master"] == lease.bridge


async def test_every_call_is_idempotent(client: Client) -> None:
    request = (TaskName("a"), (nic("service"),), (udp(5353),))
    assert await client.reserve(*request) == await client.reserve(*request)
    await client.attach(TaskName("a"))
    before = host_state()
    await client.attach(TaskName("a"))
    assert await client.reserve(*request) == (await client.reservations())[0]
    assert host_state() == before
    for task in ("a", "a", "never"):
        await client.drop(task)


async def test_refusals_name_the_value_and_the_holder(service: Service) -> None:
    with socket.socket() as listener, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as bound:
        listener.bind(("127.0.0.1", 8000))
        listener.listen()
        bound.bind(("0.0.0.0", 5300))
        async with service.running('[network.default]\nipv4 = "10.77.0.0/29"\n') as client:
            await client.have("a", udp(5353), nics=(nic("service", ip="10.77.0.3"),))
            for error, words, nics, ports in (
                (TakenError, "8000/tcp is taken by another process", (nic("service"),), (tcp(8000),)),
                (TakenError, "5300/udp is taken by another process", (nic("service"),), (udp(5300),)),
                (TakenError, "5353/udp is taken by task a", (nic("service"),), (udp(5353),)),
                (TakenError, "10.77.0.3 for NIC service is taken by task a", (nic("service", ip="10.77.0.3"),), ()),
                (InvalidRequestError, "its gateway's", (nic("service", ip="10.77.0.1"),), ()),
                (InvalidRequestError, "network nope does not exist", (nic("service", "nope"),), ()),
                (InvalidRequestError, "leaves from 224.0.0.9", (nic("service"),), (udp(1, host_ip="224.0.0.9"),)),
                (InvalidRequestError, "NIC other: expected a", (nic("service"),), (udp(1, nic_name="other"),)),
            ):
                with pytest.raises(error, match=words):
                    await client.reserve(TaskName("b"), nics, ports)
                with pytest.raises(error, match=words):
                    await client.preview(TaskName("b"), nics, ports)
            with pytest.raises(TakenError, match="holds another reservation"):
                await client.reserve(TaskName("a"), (nic("service"),), ())
            with pytest.raises(NotFoundError, match="task b has no reservation"):
                await client.attach(TaskName("b"))
            assert [held.task for held in await client.reservations()] == ["a"]


async def test_a_range_in_use_is_left_alone(service: Service) -> None:
    run("ip", "address", "add", "10.153.0.7/24", "dev", "lo")
    async with service.running() as client:
        lease = await client.lease("a")
        assert lease.ipv4 is not None
        assert str(lease.ipv4.network) == "10.153.1.0/24"
        await client.drop("a")
        service.configure('[network.default]\nipv4 = "10.153.0.0/16"\n')
        with pytest.raises(HostError, match=r"it overlaps 10\.153\.0\.\d+/\d+ of the host's own routes"):
            await client.reserve(TaskName("a"), (nic("service"),), ())
    run("ip", "address", "del", "10.153.0.7/24", "dev", "lo")


async def test_the_bridge_of_another_program_is_not_changed(service: Service) -> None:
    run("ip", "link", "add", "solo5-default", "type", "bridge")
    async with service.running() as client:
        with pytest.raises(TakenError, match="link solo5-default exists and is not a bridge of solo5-networkd"):
            await client.have("a")
    assert "solo5-default" in run("ip", "link")
    run("ip", "link", "del", "solo5-default")


async def test_a_preview_changes_nothing(service: Service) -> None:
    before = host_state()
    async with service.running() as client:
        reservation, nft = await client.preview(TaskName("a"), (nic("service"),), (udp(5353),))
        assert host_state() == before
        lease = await client.lease("a", udp(5353))
        assert reservation.leases == (lease,)
        added = nft.splitlines()
        run("nft", *added[-1].replace("add ", "get ").split())
    assert "add element ip solo5 masqueraded { 10.153.0.0/24 }" in added


async def test_fifty_at_once_share_nothing(service: Service) -> None:
    await service.restart()
    calls = [_busctl(service, "Reserve", SIGNATURE, f"t{n}", "1", *ONE_NIC) for n in range(50)]
    calls += [_busctl(service, "Reserve", SIGNATURE, f"p{n}", "2", *ONE_NIC, *PORT_80) for n in range(10)]
    answers = await asyncio.gather(*map(_finished, calls))
    leases = [json.loads(out)["data"][0][0] for code, out, _ in answers if code == 0]
    assert len(leases) == 51
    for field in ("tap", "ipv4", "mac"):
        assert len({lease[field]["data"] for lease in leases}) == 51
    refused = [error for code, _, error in answers if code]
    assert all("80/tcp is taken by task p" in error for error in refused)
    async with service.client() as client:
        names = [held.task for held in await client.reservations()]
        await asyncio.gather(*(client.attach(name) for name in names))
        assert len([each for each in host_state()[:-3] if each.startswith("s5-")]) == 51
        await asyncio.gather(*(client.release(name) for name in names))


@pytest.mark.parametrize(
    ("ports", "address"),
    [((udp(5353),), "127.0.0.1"), ((udp(5352), udp(5353), tcp(5353)), "127.0.0.1"), ((udp(5353),), HOST6)],
    ids=["one port", "several ports", "IPv6"],
)
async def test_a_client_does_not_stick_to_a_guest_that_is_gone(
    service: Service, wan: Outside, ports: tuple[PortRequest, ...], address: str
) -> None:
    with wan.entered() if address == HOST6 else nullcontext():  # one beyond the host, or this host
        client_socket = socket.socket(socket.AF_INET6 if address == HOST6 else socket.AF_INET, socket.SOCK_DGRAM)
    with client_socket:
        client_socket.bind(("", 6000))

        async def ask() -> bytes:
            return await ask_udp(address, 5353, sock=client_socket.dup())

        async with service.running("[network.default]\nipv6 = true\n") as client:
            await client.lease("neighbour")  # as long as a network is up, flows outlive their guests
            client_socket.sendto(b"nobody there", (address, 5353))
            for name in ("a", "b"):
                async with Guest(await client.lease(name, *ports), greeting=name.encode()):
                    await until_answered(ask, name.encode() + b"HELLO")
                await client.drop(name)


async def test_a_running_guest_does_not_notice_a_kill(service: Service, client: Client) -> None:
    async with Guest(await client.lease("a", udp(5353))) as guest:
        assert await ask_udp("127.0.0.1", 5353) == b"HELLO"
        before = host_state()
        service.kill()
        assert host_state() == before
        assert await ask_udp("127.0.0.1", 5353) == b"HELLO"
        run("nft", "flush", "ruleset")
        await service.restart()
        assert host_state() == before
        assert await ask_udp("127.0.0.1", 5353) == b"HELLO"
        await guest.resolve(guest.gateway)
    await client.attach(TaskName("a"))


async def test_killed_again_and_again_between_any_two_steps(service: Service) -> None:
    chance = random.Random(5)
    for _ in range(6):
        await service.restart()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_bustle(service))
            await asyncio.sleep(chance.uniform(0.05, 0.3))
            service.kill()
    async with service.running() as client:
        for held in await client.reservations():
            await client.release(held.task)
        assert not await client.reservations()


@pytest.mark.parametrize("state", ["reserved", "releasing"])
async def test_half_done_work_is_finished_or_undone(service: Service, client: Client, state: str) -> None:
    """Taps, rules and bridge exist, and the lease record has the state before the attach or release."""
    await client.lease("a", udp(5353))
    lease = await client.lease("b")
    service.kill()
    _rewrite(service.state / "tasks/a.json", state=state, expires=1 << 40)
    await service.restart()
    await until(lambda: len([each for each in host_state()[:-3] if each.startswith("s5-")]) == 1)
    assert "5353" not in run("nft", "list", "ruleset")
    assert link(lease.tap)["master"] == lease.bridge
    # The lease is the last to go: a file without taps can be finished, taps without a file would be nobody's.
    await until(lambda: (service.state / "tasks/a.json").exists() == (state == "reserved"))
    assert [held.task for held in await client.reservations()] == (["a", "b"] if state == "reserved" else ["b"])
    if state == "reserved":
        await client.attach(TaskName("a"))
        assert "5353" in run("nft", "list", "ruleset")


async def test_a_reservation_without_an_attach_expires(service: Service, client: Client) -> None:
    """With its request."""
    await client.reserve(TaskName("a"), (nic("service"),), ())
    assert (service.state / "requests/a.json").exists()
    service.kill()
    _rewrite(service.state / "tasks/a.json", expires=0)
    await service.restart()
    await until(lambda: not list(service.state.rglob("*.json")))


async def test_an_orphan_is_taken_back_when_its_unit_had_time_to_come(service: Service, client: Client) -> None:
    for task in "abc":
        await client.lease(task)
    service.kill()
    for task in "ab":
        _rewrite(service.state / f"tasks/{task}.json", expires=0)
    await service.restart()
    async with pid1(service, Pid1(service, {"solo5-task-b.service"})):
        assert await client.collect(dry_run=True) == ("network lease of task a",)
        assert len(await client.reservations()) == 3
        await client.collect(dry_run=False)
        assert [held.task for held in await client.reservations()] == ["b", "c"]


async def test_it_exits_without_leases(service: Service) -> None:
    async with service.running(None, "--idle", "1") as client:
        await client.lease("a")
    assert await asyncio.to_thread(service.wait, 5) == 0


async def test_a_state_directory_that_cannot_be_written_is_an_error(service: Service) -> None:
    service.state.mkdir()
    (service.state / "networks").write_text("in the way")
    before = host_state()
    async with service.running() as client:
        with pytest.raises(HostError, match=r"networks/default\.json cannot be written: "):
            await client.reserve(TaskName("a"), (nic("service"),), ())
        assert await client.reservations() == ()
    assert host_state() == before
    (service.state / "networks").unlink()


async def test_a_wrong_setting_is_an_error(service: Service) -> None:
    async with service.running("[network.default]\nmtuu = 9000\n") as client:
        with pytest.raises(Exception, match="network.default.mtuu is not a known key"):
            await client.reserve(TaskName("a"), (nic("service"),), ())


SIOCETHTOOL, ETHTOOL_GGSO, ETHTOOL_GGRO = 0x8946, 0x23, 0x2B
SIGNATURE = "sa{sv}"
ONE_NIC = ("nics", "aa{sv}", "1", "1", "nic", "s", "service")
PORT_80 = (
    *("ports", "aa{sv}", "1", "4", "nic", "s", "service"),
    *("host_port", "t", "80", "port", "t", "80", "protocol", "s", "tcp"),
)


async def until_answered(ask: Callable[[], Awaitable[bytes]], answer: bytes) -> None:
    """Send a UDP request with retries; a late reply to an earlier one may arrive, too."""
    heard = b""
    while heard != answer:
        with suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                heard = await ask()


async def _bustle(service: Service) -> None:
    """Start and end tasks until the service is killed."""
    async with service.client() as client:
        for number in range(1000):
            try:
                await client.have(f"t{number % 3}", udp(5300 + number % 3))
                await client.drop(f"t{(number + 1) % 3}")
            except (HostError, NotFoundError):
                return


def _busctl(service: Service, member: str, signature: str = "", *arguments: str) -> list[str]:
    command = ["busctl", f"--address={service.bus.address}", "--json=short", "call", NAME, PATH, NAME, member]
    return [*command, signature, *arguments] if signature else command


async def _finished(command: list[str]) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, error = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), error.decode()


def _offload(link: str, command: int) -> int:
    value = array.array("I", [command, 7])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCETHTOOL, struct.pack("16sP16x", link.encode(), value.buffer_info()[0]))
    return value[1]


def _rewrite(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


TASK = TaskName("a")
REQUEST = (TASK, (nic("service"),), (udp(5353),))
EXIT_RESTART = 75
SOON = ("--idle", "0.1")

_CALLED_ON_THE_WAY_OUT = """
import subprocess
from solo5_systemd.dbus import service

def notify(message):
    if message == "STOPPING=1":
        subprocess.run({command!r}, check=True)

service.notify = notify
"""
"""The service, with a call between STOPPING=1 and the release of its bus name."""


def _called_on_the_way_out(service: Service, *call: str) -> int:
    """Run the service with such a call and return its exit status."""
    bus = ("busctl", f"--address={service.bus.address}", "--expect-reply=no", "call", NAME, PATH, NAME)
    service.start(*SOON, change=_CALLED_ON_THE_WAY_OUT.format(command=[*bus, *call]))
    return service.wait(10)


async def test_what_is_given_on_the_way_out_is_looked_after_by_the_next(service: Service) -> None:
    reserve = ("Reserve", "sa{sv}", TASK, "1", "nics", "aa{sv}", "1", "1", "nic", "s", "service")
    assert await asyncio.to_thread(_called_on_the_way_out, service, *reserve) == EXIT_RESTART
    async with service.running(None, *SOON) as client:
        assert await client.reservation(TASK) is not None
        await client.attach(TASK)


async def test_a_release_during_the_exit_needs_no_restart(service: Service) -> None:
    assert await asyncio.to_thread(_called_on_the_way_out, service, "Release", "s", TASK) == 0


async def test_calls_around_each_exit_are_answered_and_leave_nothing(service: Service) -> None:
    """The calls arrive shortly before or after the exit, some of them during it."""
    chance = random.Random(5)

    async def insist(call: Callable[[], Awaitable[object]]) -> None:
        """Retry, in place of D-Bus activation: a call to an exited service waits for its next start."""
        while True:
            try:
                await call()
            except HostError:
                leases = len(await client.reservations())
                assert await asyncio.to_thread(service.wait, 5) == (EXIT_RESTART if leases else 0)
                await service.restart(*SOON)
            else:
                return

    async with service.running(None, *SOON) as client:
        for _ in range(6):
            await asyncio.sleep(0.1 + chance.uniform(-0.004, 0.004))
            await insist(lambda: client.reserve(*REQUEST))
            await insist(lambda: client.attach(TASK))
            await insist(lambda: client.release(TASK))
    assert await asyncio.to_thread(service.wait, 5) == 0


async def test_elements_without_a_lease_are_orphans_until_the_services_next_start(
    service: Service, client: Client
) -> None:
    await client.lease("a", udp(5301))
    await client.lease("b", udp(5302))
    assert await client.orphans() == ()
    service.kill()
    (service.state / "tasks/a.json").unlink()
    found = await client.orphans()
    assert any("5301" in line for line in found)
    assert all(line.startswith("nftables element ") and "5302" not in line for line in found)
    await service.restart()
    assert await client.orphans() == ()


async def test_a_running_service_removes_an_orphaned_tap_when_it_collects(client: Client) -> None:
    lease = await client.lease("a")
    run("ip", "tuntap", "add", "s5-orphan", "mode", "tap")
    await client.collect(dry_run=True)
    assert link_index("s5-orphan")
    await client.collect(dry_run=False)
    assert not link_index("s5-orphan")
    assert link_index(lease.tap)


async def test_only_what_had_time_to_come_is_overdue(service: Service, client: Client) -> None:
    await client.lease("a")
    await client.lease("b")
    service.kill()
    _rewrite(service.state / "tasks/a.json", expires=0)
    assert [record.reservation.task for record in await client.expired()] == ["a"]
    _rewrite(service.state / "tasks/a.json", expires=1 << 40)
    await service.restart()


WEB = TaskName("web")


async def test_a_network_has_the_range_of_its_declared_tasks_again(service: Service) -> None:
    """Also where the range that it would choose is free by now: at a boot before a VPN has its routes."""
    service.configure("[network.default]\nipv6 = true\n")
    run("ip", "link", "add", "vpn", "type", "bridge")
    run("ip", "link", "set", "vpn", "up")
    run("ip", "route", "add", "10.153.0.0/16", "dev", "vpn")
    async with service.running() as client:
        lease = await client.lease("web")
        assert lease.address in IPv4Network("172.29.0.0/24")
        write_request(WEB, LastRequest(nics=(lease.request,)))
        await client.drop("web")
        run("ip", "link", "del", "vpn")
        first = await client.lease("other")
        assert (first.ipv4 and first.ipv4.network, first.ipv6 and first.ipv6.network) == (
            lease.ipv4 and lease.ipv4.network,
            lease.ipv6 and lease.ipv6.network,
        )
        assert (await client.lease("web")).addresses == lease.addresses
