"""The network namespace of a task: the tap is in it, its rules and its bridge port are the host's."""

import asyncio
import fcntl
import os
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from tests.contract.guest import IFF_TAP_NO_PI, IFF_VNET_HDR, MORE, UDP, Guest, opened_tap
from tests.contract.netns import link, run
from tests.contract.netservice import UNTOLD, Client, Service, host_state, nic, tcp, udp, until
from tests.contract.sockets import ask_tcp, ask_udp

from solo5_systemd.base.errors import HostError, TakenError
from solo5_systemd.base.names import TaskName
from solo5_systemd.network import namespaces
from solo5_systemd.network.lease_files import read_repairs
from solo5_systemd.network.model import PortRequest, Reservation
from solo5_systemd.network.tap_counters import Traffic, parse_net_dev
from solo5_systemd.networkd.releases import UNIT_CHECK_INTERVAL_S
from solo5_systemd.networkd.repairs import RESTORED_MAX

SIOCSIFHWADDR, ARPHRD_ETHER = 0x8924, 1  # linux/sockios.h, if_arp.h

# linux/if_tun.h
TUNSETPERSIST, TUNSETOWNER, TUNSETGROUP, TUNSETCARRIER = 0x400454CB, 0x400454CC, 0x400454CE, 0x400454E2

NEEDS_CHECKSUM = struct.pack("=BBHHHHH", 1, 0, 0, 0, 0, 20, 0)  # linux/virtio_net.h: from byte 20 on, at byte 20


@pytest.fixture
def apart(service: Service) -> Iterator[Service]:
    """A service, of which in the end no namespace is left."""
    before = host_state()
    yield service
    assert host_state() == before, "nothing of the service is left"
    assert not [*Path("/run/netns").glob("solo5-*")]


@asynccontextmanager
async def held(client: Client, task: str, *ports: PortRequest) -> AsyncIterator[Reservation]:
    reservation = await client.have(task, *ports)
    assert reservation.namespace == f"/run/netns/solo5-{task}"
    try:
        yield reservation
    finally:
        await client.drop(task)
        await client.forget(TaskName(task))


@asynccontextmanager
async def guest(client: Client, task: str, *ports: PortRequest) -> AsyncIterator[Guest]:
    async with (
        held(client, task, *ports) as reservation,
        Guest(reservation.leases[0]) as opened,
    ):
        await opened.resolve(opened.gateway)  # the kernel sends to a tap a moment after it is opened
        yield opened


def inside(task: str, *words: str) -> str:
    return run("ip", "netns", "exec", f"solo5-{task}", *words)


async def test_what_a_guest_has_sent_is_counted_as_sent(apart: Service) -> None:
    """The counters are those of the host's end of the pair, in which directions are the host's."""
    async with apart.running() as client, guest(client, "web") as web:
        before = counted(web.tap)
        for _ in range(50):
            web.send(web.frame(await web.resolve(web.gateway), 0x88B5, bytes(1400)))
        after = counted(web.tap)
        assert after.sent.bytes - before.sent.bytes > 50 * 1400
        assert after.received.bytes - before.received.bytes < 50 * 400


def counted(tap: str) -> Traffic:
    return dict(parse_net_dev(Path("/proc/thread-self/net/dev").read_text()))[tap]


async def test_a_tender_has_the_kernel_fill_in_no_checksum(apart: Service) -> None:
    """It would be at any place of the frame, such as its sender's address, and after the rules have seen it."""
    async with apart.running() as client, held(client, "web") as reservation:
        _, descriptor = opened_tap(reservation.leases[0].tap, flags=IFF_TAP_NO_PI | IFF_VNET_HDR)
        with closing(os.fdopen(descriptor, "wb", buffering=0)) as tap:
            for size in (len(NEEDS_CHECKSUM), 12, 64, 4096):
                with pytest.raises(OSError, match="Invalid argument"):
                    tap.write(NEEDS_CHECKSUM.ljust(size, b"\0") + bytes(60))
            with pytest.raises(OSError, match="Invalid argument"):
                tap.write(bytes(1 << 20))
        async with Guest(reservation.leases[0]) as web:
            assert await web.resolve(web.gateway)


async def test_there_is_nothing_in_it_but_the_tap(apart: Service) -> None:
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind("\0solo5-secret")
        listener.listen()
        async with apart.running() as client, held(client, "web") as reservation:
            tap = reservation.leases[0].tap
            names = {line.split(": ")[1].split("@")[0] for line in inside("web", "ip", "-o", "link").splitlines()}
            assert names == {"lo", tap}
            assert inside("web", "ip", "-o", "address").strip() == ""
            assert inside("web", "ip", "route", "show", "table", "all").strip() == ""
            assert "solo5-secret" in Path("/proc/net/unix").read_text()
            assert "solo5-secret" not in inside("web", "cat", "/proc/net/unix")


async def test_fragments_of_multicast_packets_take_no_memory(apart: Service) -> None:
    """A macvlan reassembles them, before any rule."""
    async with apart.running() as client, guest(client, "web") as web:
        for number in range(200):
            to = IPv4Address("239.1.2.3")
            web.send(web.ipv4(bytes.fromhex("01005e010203"), to, UDP, bytes(1400), number=number, fragment=MORE))
        await web.resolve(web.gateway)
        assert "FRAG: inuse 0 memory 0" in inside("web", "cat", "/proc/net/sockstat")


CHANGES = {
    "isolated": "bridge link set dev {tap} isolated on",
    "learning": "bridge link set dev {tap} learning on",
    "flood": "bridge link set dev {tap} flood on",
    "hairpin": "bridge link set dev {tap} hairpin off",
    "FDB entry": "bridge fdb del {mac} dev {tap} master",
    "FDB entry of another port": "bridge fdb replace {mac} dev {other} master static",
    "MAC": "ip link set {tap} address {mac}",
    "master": "ip link set {tap} nomaster",
    "name": "until ip link set {tap} down && ip link set {tap} name other; do :; done; ip link set other up || true",
    "tap is down": "ip -n solo5-{task} link set {tap} down",
    "source": "ip link set {tap} type macvlan macaddr del {mac}",
    "deleted": "ip link delete {tap}",
    "second source": "ip link set {tap} type macvlan macaddr add 02:00:00:00:00:66",
}


async def test_what_another_program_changes_is_restored_under_a_running_guest(apart: Service) -> None:
    """What solo5-networkd relies on, in port, macvlan, FDB and namespace. A link that changes is a reason to look."""
    async with apart.running() as client, held(client, "one") as one, held(client, "two") as two:
        others = [each.leases[0].tap for each in (one, two)]  # each is restored ten times in 20 seconds
        for number, change in enumerate(CHANGES):
            another = others[number % 2]
            async with guest(client, f"web{number}", tcp(8080)) as web:
                before = port_of(web.tap)
                command = CHANGES[change].format(tap=web.tap, mac=web.mac.hex(":"), other=another, task=f"web{number}")
                run("sh", "-ec", command)
                run("ip", "link", "set", another, "nomaster")
                what = f"tap {web.tap} was missing"
                await until(lambda what=what: what in apart.log.read_text())  # type: ignore[misc]
                await until(lambda tap=web.tap, before=before: port_of(tap) == before)  # type: ignore[misc]
                assert await ask_tcp("127.0.0.1", 8080) == b"HELLO", change


async def test_a_change_without_a_message_is_found_within_20_seconds(apart: Service) -> None:
    assert UNIT_CHECK_INTERVAL_S <= 20
    async with apart.running(None, *UNTOLD) as client, guest(client, "web", tcp(8080)) as web:
        run("ip", "link", "set", web.tap, "address", web.mac.hex(":"))
        inside("web", "ip", "link", "set", web.tap, "down")
        await until(lambda: f"tap {web.tap} was missing" in apart.log.read_text())
        assert await ask_tcp("127.0.0.1", 8080) == b"HELLO"
        await until(lambda: any(f"tap {web.tap} was missing, down" in each.what for each in read_repairs()))


async def test_what_changes_after_a_check_is_found_by_the_next(apart: Service) -> None:
    """Each compares all taps with what the last has seen, and looks at those that differ."""
    changes = {
        name: change for name, change in CHANGES.items() if name not in ("master", "name", "deleted")
    }  # with a message
    async with apart.running(None, *UNTOLD) as client, held(client, "other") as other, AsyncExitStack() as stack:
        guests = [await stack.enter_async_context(guest(client, f"web{number}")) for number, _ in enumerate(changes)]
        before = [port_of(each.tap) for each in guests]
        await asyncio.sleep(1.5)
        for web, change in zip(guests, changes.values(), strict=True):
            another = other.leases[0].tap
            run("sh", "-ec", change.format(tap=web.tap, mac=web.mac.hex(":"), other=another, task=web.task))
        await until(lambda: [port_of(each.tap) for each in guests] == before)
        log = apart.log.read_text()
        assert [
            name for web, name in zip(guests, changes, strict=True) if f"tap {web.tap} was missing" not in log
        ] == []


def port_of(tap: str) -> tuple[object, ...]:
    """Return the bridge, the MAC, the settings, the guest's MAC and the FDB entries of a port."""
    found = link(tap)
    if not found:
        return ()
    slave = found.get("linkinfo", {}).get("info_slave_data", {})
    keys = ("hairpin", "isolated", "learning", "flood", "group_fwd_mask")
    return (
        *(found.get("master"), found["address"], "UP" in found["flags"]),
        *(slave.get(key) for key in keys),
        str(found["linkinfo"]["info_data"].get("macaddr_data")),
        *sorted(line for line in run("bridge", "fdb", "show", "br", "solo5-default").splitlines() if tap in line),
    )


async def test_a_deleted_tap_is_made_again_for_the_next_start(apart: Service) -> None:
    """The tender that runs has the open file of the one that was deleted."""
    async with apart.running() as client, held(client, "web", tcp(8080)) as reservation, held(client, "other") as other:
        [lease] = reservation.leases
        inside("web", "ip", "link", "del", lease.tap)
        run("ip", "link", "set", other.leases[0].tap, "nomaster")
        await until(lambda: bool(link(lease.tap, "web")))
        async with Guest(lease) as web:
            await web.resolve(web.gateway)
            assert await ask_tcp("127.0.0.1", 8080) == b"HELLO"


async def test_a_tap_of_an_earlier_tender_is_made_anew(apart: Service) -> None:
    """Whatever that has done to it: its owner, its MAC, its carrier, and a group that root could not reset."""
    async with apart.running() as client, held(client, "web") as reservation:
        [lease] = reservation.leases
        made = link(lease.tap, "web")
        with os.fdopen(opened_tap(lease.tap)[1], "wb", buffering=0) as tap:
            fcntl.ioctl(tap, TUNSETOWNER, 12345)
            fcntl.ioctl(tap, TUNSETGROUP, 12345)
            fcntl.ioctl(tap, TUNSETCARRIER, struct.pack("i", 0))
        await client.attach(TaskName("web"))  # as its network unit, at the next start
        found = link(lease.tap, "web")
        assert found["ifindex"] != made["ifindex"]
        assert found["linkinfo"]["info_data"] == made["linkinfo"]["info_data"]


def set_mac(opened: Guest, mac: bytes) -> None:
    """Set the MAC of a tap at its own descriptor, which needs no capability."""
    fcntl.ioctl(opened.descriptor, SIOCSIFHWADDR, struct.pack("16sH6s", opened.tap.encode(), ARPHRD_ETHER, mac))
    assert link(opened.tap, opened.task)["address"] == mac.hex(":")


async def test_a_mac_that_a_tender_gives_its_tap_changes_no_port_and_no_forwarding(apart: Service) -> None:
    async with apart.running() as client, guest(client, "web") as web, guest(client, "victim", udp(5353)) as victim:
        bridge = link(web.tap)["master"]
        before = (run("bridge", "fdb", "show", "br", bridge), link(web.tap)["address"], link(bridge)["address"])
        for mac in (victim.mac, await web.resolve(web.gateway), bytes.fromhex("020000000001")):
            set_mac(web, mac)
            assert await ask_udp("127.0.0.1", 5353) == b"HELLO"
            assert await victim.resolve(victim.gateway)
            assert await web.resolve(web.gateway)
        assert (run("bridge", "fdb", "show", "br", bridge), link(web.tap)["address"], link(bridge)["address"]) == before


async def test_a_mac_that_a_tender_gives_its_tap_is_no_mac_of_a_bridge_of_others(apart: Service) -> None:
    """Such a bridge has the lowest MAC of its ports, looked for when a port is added."""
    (apart.settings / "lan.toml").write_text('[network.lan]\njoin = "br0"\n')
    run("ip", "link", "add", "br0", "type", "bridge")
    card = ("address", "52:54:00:12:34:56")  # as of a network card: a random one could be above those of taps
    run("ip", "link", "add", "uplink", *card, "master", "br0", "up", "type", "veth", "peer", "name", "other")
    run("ip", "link", "set", "br0", "up")
    async with apart.running() as client:
        web = await client.have("web", nics=(nic("service", "lan"),))
        mac = link("br0")["address"]
        assert mac == link("uplink")["address"]
        with closing(Guest(web.leases[0])) as opened:
            set_mac(opened, bytes.fromhex("020000000001"))
            await client.have("next", nics=(nic("service", "lan"),))
            assert link("br0")["address"] == mac
        for task in ("web", "next"):
            await client.drop(task)
            await client.forget(TaskName(task))
    for name in ("uplink", "br0"):
        run("ip", "link", "delete", name)


CHECK_INTERVAL_S = 6
CHECKED = f"from solo5_systemd.networkd import maintenance\nmaintenance.UNIT_CHECK_INTERVAL_S = {CHECK_INTERVAL_S}"


async def test_a_tap_that_its_tender_removes_again_and_again_waits_for_the_next_check(apart: Service) -> None:
    async with apart.running(change=CHECKED) as client, held(client, "web") as reservation:
        [lease] = reservation.leases
        for _ in range(RESTORED_MAX + 1):
            await until(lambda: link(lease.tap).get("master") == lease.bridge)
            with closing(Guest(lease)) as opened:
                fcntl.ioctl(opened.descriptor, TUNSETPERSIST, 0)
            await until(lambda: not link(lease.tap) or link(lease.tap)["operstate"] != "UP")
        with pytest.raises(TimeoutError):
            await until(lambda: bool(link(lease.tap)), 1)
        assert len([each for each in read_repairs() if lease.tap in each.what]) == RESTORED_MAX
        await until(lambda: bool(link(lease.tap)), CHECK_INTERVAL_S + 5)


async def test_one_that_is_gone_is_an_error(apart: Service) -> None:
    async with apart.running() as client:
        reservation = await client.reserve(TaskName("web"), (nic("service"),), ())
        with pytest.raises(HostError, match="solo5-web is no network namespace"):
            await client._service.call("Attach", "web")  # as its network unit, which makes none
        assert not link(reservation.leases[0].tap)


def test_make_and_remove_are_idempotent() -> None:
    path = "/run/netns/solo5-made"
    for _ in range(2):
        namespaces.make_task_namespace(path)
    assert inside("made", "ip", "-o", "link").count("\n") == 1
    for _ in range(2):
        namespaces.remove_task_namespace(path)
        assert not Path(path).exists()


@contextmanager
def foreign(name: str) -> Iterator[Path]:
    """A namespace of another program, with a link."""
    run("ip", "netns", "add", name)
    path = Path("/run/netns", name)
    try:
        run("ip", "-n", name, "link", "add", "theirs", "type", "veth", "peer", "name", "other")
        before = path.stat()
        yield path
        assert (path.stat().st_dev, path.stat().st_ino) == (before.st_dev, before.st_ino)
        assert "theirs" in run("ip", "-n", name, "-o", "link")
    finally:
        run("ip", "netns", "delete", name)


def test_a_namespace_of_another_program_is_refused() -> None:
    with foreign("solo5-made") as path:
        with pytest.raises(TakenError, match=r"/run/netns/solo5-made belongs to another program"):
            namespaces.make_task_namespace(str(path))
        namespaces.remove_task_namespace(str(path))


def test_a_namespace_of_another_task_is_refused() -> None:
    one, other = "/run/netns/solo5-one", "/run/netns/solo5-other"
    namespaces.make_task_namespace(one)
    Path(other).touch()
    run("mount", "--bind", one, other)
    with pytest.raises(TakenError, match="solo5-other belongs to another program"):
        namespaces.make_task_namespace(other)
    namespaces.remove_task_namespace(other)
    run("umount", other)
    namespaces.remove_task_namespace(other)
    namespaces.remove_task_namespace(one)
    assert not [each for each in (one, other) if Path(each).exists()]


def test_what_is_no_namespace_is_refused() -> None:
    path = Path("/run/netns/solo5-web")
    path.parent.mkdir(exist_ok=True)
    path.write_text("theirs")
    with pytest.raises(TakenError, match="belongs to another program"):
        namespaces.make_task_namespace(str(path))
    namespaces.remove_task_namespace(str(path))
    assert path.read_text() == "theirs"
    path.unlink()


def test_a_killed_make_leaves_an_empty_file_that_the_next_one_uses() -> None:
    path = Path("/run/netns/solo5-killed")
    path.parent.mkdir(exist_ok=True)
    for _ in range(2):
        path.touch()
        namespaces.remove_task_namespace(str(path))
        assert not path.exists()
    path.touch()
    namespaces.make_task_namespace(str(path))
    assert namespaces.is_task_namespace(str(path))
    namespaces.remove_task_namespace(str(path))
    assert not path.exists()


def test_a_namespace_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HostError, match=r"solo5-web cannot be made: File exists\."):
        namespaces.make_task_namespace(str(tmp_path / "file" / "solo5-web"))
