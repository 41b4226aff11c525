"""DHCP for guests, by dnsmasq: what a guest gets, what it cannot get, and what the failure of each part leaves."""

from collections.abc import AsyncIterator
from dataclasses import replace
from ipaddress import IPv4Address

import pytest
from tests.contract.dhcp import (
    ACK,
    DECLINE,
    DISCOVER,
    INFORM,
    OFFER,
    RELEASE,
    REQUEST,
    Pid1WithServers,
    answered,
    answers,
    leased,
    message,
    sent,
)
from tests.contract.guest import UDP, Guest
from tests.contract.netns import run
from tests.contract.netservice import Client, Service, nic, until
from tests.contract.test_network_ra import RA, advertised
from tests.contract.test_network_segments import FIRST, ONE_TAP, SECOND, THIRD

from solo5_systemd.base.errors import HostError
from solo5_systemd.base.names import TaskName
from solo5_systemd.network.model import GuestNames, Lease
from solo5_systemd.settings.resolver import ntp_servers, resolver

DHCP = '[network.default]\nipv4 = "10.9.0.0/24"\nmtu = 1400\ndhcp = true\n'
RESOLVER = replace(resolver(["9.9.9.9", "192.0.2.53"], ["example.org", "b.example"]), ntp=ntp_servers(["192.0.2.123"]))
NAMED = GuestNames(resolver=RESOLVER, hostname="web.example")
WITHOUT_DNSMASQ = """
from solo5_systemd.networkd import dhcp
dhcp.DHCP_SERVER = dhcp.DHCP_SERVER._replace(name="/no")
"""
SERVER = "solo5-dhcp@default.service"


@pytest.fixture
async def client(service: Service, pid1: Pid1WithServers) -> AsyncIterator[Client]:
    async with service.running(DHCP) as client:
        yield client


async def attached(
    client: Client, task: str, names: GuestNames = NAMED, ip: str | None = None, mac: str | None = None
) -> Lease:
    reservation = await client.reserve(TaskName(task), (nic("service", ip=ip, mac=mac),), (), names=names)
    await client.attach(TaskName(task))
    return reservation.leases[0]


def files(service: Service) -> list[str]:
    return sorted(
        str(path.relative_to(service.state)) for path in (service.state / "dhcp").rglob("*") if path.is_file()
    )


@pytest.mark.parametrize("broadcast", [False, True])
async def test_a_guest_gets_what_it_is_leased(client: Client, pid1: Pid1WithServers, broadcast: bool) -> None:
    lease = await attached(client, "web")
    async with Guest(lease) as guest:
        got = await leased(guest, broadcast=broadcast)
    assert got.kind == ACK
    assert (got.address, got.server, got.source) == (lease.address, IPv4Address("10.9.0.1"), IPv4Address("10.9.0.1"))
    assert got.addresses(1) == ["255.255.255.0"]
    assert got.addresses(3) == got.addresses(54) == ["10.9.0.1"]
    assert (got.addresses(6), got.addresses(42)) == (["9.9.9.9", "192.0.2.53"], ["192.0.2.123"])
    assert (got.options[12], got.options[15]) == (b"web.example", b"example.org")
    assert got.options[119] == b"\7example\3org\0\1b\7example\0"
    assert int.from_bytes(got.options[26]) == 1400
    assert int.from_bytes(got.options[51]) == 24 * 3600
    await client.drop("web")
    assert pid1.asked == ["RestartUnit", "StopUnit"]


async def test_without_more_a_guest_gets_its_lease_and_the_name_of_its_task(client: Client) -> None:
    lease = await attached(client, "web", GuestNames())
    async with Guest(lease) as guest:
        got = await leased(guest)
    assert (got.address, got.options[12]) == (lease.address, b"web")
    assert {6, 15, 42, 119}.isdisjoint(got.options)


async def test_a_lease_is_renewed_from_its_own_address(client: Client) -> None:
    async with Guest(await attached(client, "web")) as guest:
        await leased(guest)
        gateway = await guest.resolve(guest.gateway)
        body = message(REQUEST, guest.mac, number=300, ciaddr=guest.ip)
        sent(guest, body, source=guest.ip, to=guest.gateway, mac=gateway)
        assert (await answered(guest, 300)).kind == ACK
        body = message(REQUEST, guest.mac, number=301, ciaddr=guest.ip)
        sent(guest, body, source=guest.ip)  # rebinding
        assert (await answered(guest, 301)).kind == ACK


async def test_neighbours_see_and_answer_nothing(client: Client) -> None:
    one, two = await attached(client, "one"), await attached(client, "two")
    async with Guest(one) as guest, Guest(two) as other:
        await leased(other, broadcast=True)
        other.frames.clear()
        got = await leased(guest, broadcast=True)
        assert got.address == one.address
        await other.resolve(other.gateway)  # what was sent to it before has arrived
        assert answers(other) == []
        assert not any(guest.mac in frame[42:76] for frame in other.frames)
        # An offer of the neighbour, also to the guest itself and as the server.
        for to, mac, source in (
            (IPv4Address("255.255.255.255"), b"\xff" * 6, other.ip),
            (guest.ip, guest.mac, other.ip),
        ):
            body = b"\2" + message(OFFER, guest.mac, number=999)[1:]
            sent(other, body, source=source, to=to, mac=mac, ports=(67, 68))
        await leased(other)  # what was sent before has arrived, or never will
        assert [each for each in answers(guest) if each.number == 999] == []


async def test_forged_messages_are_not_answered(client: Client, pid1: Pid1WithServers) -> None:
    mine, theirs = await attached(client, "mine"), await attached(client, "theirs")
    async with Guest(mine) as guest, Guest(theirs) as victim:
        await leased(victim)
        await leased(guest)
        victim.frames.clear()
        guest.frames.clear()
        far = IPv4Address("192.0.2.9")
        forged = [
            (message(DISCOVER, victim.mac), {}),
            (message(DISCOVER, victim.mac), {"source": guest.ip}),
            (message(DISCOVER, bytes(6)), {}),
            (message(DISCOVER, guest.mac, giaddr=victim.ip), {}),
            (message(DISCOVER, guest.mac, giaddr=victim.ip), {"source": guest.ip}),
            (message(DISCOVER, guest.mac, ciaddr=far), {}),
            (message(INFORM, guest.mac, ciaddr=victim.ip), {"source": guest.ip}),
            (message(INFORM, guest.mac, ciaddr=victim.ip), {}),
            (message(DISCOVER, guest.mac), {"source": victim.ip}),
            (message(DISCOVER, guest.mac), {"source": far}),
            (message(DISCOVER, guest.mac), {"ports": (1068, 67)}),
            (message(DISCOVER, guest.mac), {"to": far}),
            (message(RELEASE, victim.mac, ciaddr=victim.ip, options={54: guest.gateway.packed}), {"source": guest.ip}),
            (message(DECLINE, victim.mac, options={54: guest.gateway.packed, 50: victim.ip.packed}), {}),
        ]
        for body, how in forged:
            sent(guest, body, **how)  # type: ignore[arg-type]
        other = guest.frame(b"\xff" * 6, 0x0800, b"")
        guest.send(other[:6] + victim.mac + other[12:])
        sent(guest, message(DISCOVER, guest.mac, number=400))
        assert (await answered(guest, 400)).address == guest.ip
        assert {each.number for each in answers(guest)} == {400}
        assert not [frame for frame in victim.frames if frame[23] == UDP], "nothing was sent to the victim"
        # The victim's lease was neither given back nor declined.
        assert (await leased(victim)).address == theirs.address


async def test_an_identity_of_another_guest_is_of_no_use(client: Client) -> None:
    mine, theirs = await attached(client, "mine"), await attached(client, "theirs")
    async with Guest(mine) as guest, Guest(theirs) as victim:
        known = {61: b"\1" + victim.mac, 12: b"theirs"}
        assert (await leased(victim, extra=known)).address == theirs.address
        assert (await leased(guest, extra=known)).address == mine.address
        wish = {50: victim.ip.packed, 54: guest.gateway.packed}
        sent(guest, message(REQUEST, guest.mac, number=500, options=wish))
        assert (await answered(guest, 500)).kind != ACK
        assert (await leased(victim)).address == theirs.address


async def test_a_guest_that_asks_without_end_is_limited_and_others_are_served(client: Client) -> None:
    mine, theirs = await attached(client, "mine"), await attached(client, "theirs")
    async with Guest(mine) as guest, Guest(theirs) as other:
        await leased(guest)
        guest.frames.clear()
        for _ in range(2000):
            sent(guest, message(DISCOVER, guest.mac))
        assert (await leased(other)).address == theirs.address
        assert len(answers(guest)) <= 40


async def test_the_address_of_an_earlier_task_is_served_to_the_next(client: Client, pid1: Pid1WithServers) -> None:
    await attached(client, "stays")
    for number in range(3):
        lease = await attached(client, f"t{number}", GuestNames(hostname=f"h{number}"), ip="10.9.0.77")
        async with Guest(lease) as guest:
            got = await leased(guest)
            assert (got.address, got.options[12]) == (IPv4Address("10.9.0.77"), b"h%d" % number)
        await client.drop(f"t{number}")
    # Of the same task with other options.
    lease = await attached(client, "t2", GuestNames(hostname="new"), ip="10.9.0.77")
    async with Guest(lease) as guest:
        assert (await leased(guest)).options[12] == b"new"


async def test_a_task_that_starts_again_with_the_same_lease_restarts_no_server(
    client: Client, pid1: Pid1WithServers
) -> None:
    await attached(client, "stays")
    for _ in range(3):
        lease = await attached(client, "web")
        async with Guest(lease) as guest:
            assert (await leased(guest)).address == lease.address
        await client.drop("web")
    assert pid1.asked == ["RestartUnit"]


async def test_a_mac_address_moves_to_another_address(client: Client) -> None:
    await attached(client, "stays")
    for number, ip in enumerate(("10.9.0.77", "10.9.0.78")):
        async with Guest(await attached(client, f"t{number}", ip=ip, mac="02:00:5e:10:00:01")) as guest:
            assert (await leased(guest)).address == IPv4Address(ip)
        await client.drop(f"t{number}")


async def test_the_service_is_killed_and_guests_are_served(
    client: Client, service: Service, pid1: Pid1WithServers
) -> None:
    lease = await attached(client, "web")
    service.kill()
    async with Guest(lease) as guest:
        assert (await leased(guest)).address == lease.address
        await service.restart()
        assert (await leased(guest)).address == lease.address


@pytest.mark.parametrize("servers", [[SERVER], []], ids=["beside another", "alone"])
async def test_a_task_that_ended_while_the_service_was_dead_leaves_no_entry_and_no_server(
    client: Client, service: Service, pid1: Pid1WithServers, servers: list[str]
) -> None:
    if servers:
        await attached(client, "stays")
    lease = await attached(client, "web", ip="10.9.0.77")
    service.kill()
    (service.state / "tasks/web.json").unlink()
    await service.restart()
    await until(lambda: pid1.running() == servers)
    assert [name for name in files(service) if lease.tap in name or not servers] == []


async def test_a_server_that_dies_is_replaced_and_knows_all_guests(client: Client, pid1: Pid1WithServers) -> None:
    async with Guest(await attached(client, "web")) as guest:
        await leased(guest)
        pid1.die()
        # Its address is its own meanwhile, and it renews the lease at the new one.
        gateway = await guest.resolve(guest.gateway)
        body = message(REQUEST, guest.mac, number=600, ciaddr=guest.ip)
        sent(guest, body, source=guest.ip, to=guest.gateway, mac=gateway)
        assert (await answered(guest, 600)).kind == ACK


async def test_the_server_is_there_while_a_guest_is(client: Client, service: Service, pid1: Pid1WithServers) -> None:
    assert pid1.running() == []
    for task in ("one", "two"):
        await attached(client, task)
    await client.drop("one")
    assert pid1.running() == [SERVER]
    assert len(files(service)) == 3
    await client.drop("two")
    assert (pid1.running(), files(service)) == ([], [])
    await attached(client, "three")
    assert pid1.running() == [SERVER]


async def test_without_dhcp_there_is_no_server_and_no_answer(service: Service, pid1: Pid1WithServers) -> None:
    async with service.running(DHCP + '[network.other]\nipv4 = "10.10.0.0/24"\n') as client:
        plain = await client.lease("plain", network="other")
        assert (pid1.running(), pid1.asked) == ([], [])
        served = await attached(client, "served")
        async with Guest(plain) as guest, Guest(served) as other:
            await guest.resolve(guest.gateway)
            sent(guest, message(DISCOVER, guest.mac))
            sent(guest, message(INFORM, guest.mac, ciaddr=guest.ip), source=guest.ip)
            await leased(other)
            assert answers(guest) == []


async def test_a_server_that_does_not_start_is_an_error_and_leaves_nothing(
    client: Client, service: Service, pid1: Pid1WithServers
) -> None:
    pid1.broken = True
    with pytest.raises(HostError, match="the DHCP server of network default does not start"):
        await attached(client, "web")
    assert files(service) == []
    assert "s5-" not in run("ip", "-o", "link", "show")


def checking(interval: int) -> str:
    """The service that looks for such servers so often, and releases no task without a run meanwhile."""
    return f"""
from solo5_systemd.networkd import leases, maintenance
leases.ATTACH_TIMEOUT_S, maintenance.UNIT_CHECK_INTERVAL_S = 600, {interval}
"""


async def test_a_server_that_does_not_start_is_not_tried_for_tasks_of_another_network(
    service: Service, pid1: Pid1WithServers
) -> None:
    other = '[network.other]\nipv4 = "10.10.0.0/24"\n'
    async with service.running(DHCP + other, change=checking(600)) as client:
        await attached(client, "web")
        pid1.broken = True
        pid1.stop(SERVER)  # as one that has died too often
        pid1.asked.clear()
        await client.lease("other", network="other")
        await client.drop("other")
        assert pid1.asked == []
        with pytest.raises(HostError, match="the DHCP server of network default does not start"):
            await attached(client, "next")
        assert {each.stem for each in (service.state / "tasks").iterdir()} == {"web"}


async def test_a_server_that_has_died_too_often_is_started_again(service: Service, pid1: Pid1WithServers) -> None:
    async with service.running(DHCP, change=checking(1)) as client:
        await attached(client, "web")
        pid1.broken = True
        pid1.stop(SERVER)
        await until(lambda: pid1.asked[-2:] == ["RestartUnit", "StopUnit"])
        pid1.broken = False
        await until(lambda: pid1.running() == [SERVER])


async def test_dhcp_that_is_switched_on_and_off_applies_to_running_guests(
    client: Client, service: Service, pid1: Pid1WithServers
) -> None:
    async with Guest(await attached(client, "web")) as guest:
        await leased(guest)
        service.configure(DHCP.replace("true", "false"))
        service.end()
        await service.restart()
        assert (pid1.running(), files(service)) == ([], [])
        service.configure(DHCP)
        service.end()
        await service.restart()
        assert (await leased(guest)).options[12] == b"web.example"


async def test_a_guest_on_a_segment_is_served(service: Service, pid1: Pid1WithServers, bridge_nf: None) -> None:
    """By DHCP and by router advertisements."""
    async with service.running(f"{RA}dhcp = true\n", change=ONE_TAP) as client:
        leases = [await attached(client, task, GuestNames()) for task in ("a", "b", "c")]
        assert [lease.bridge for lease in leases] == [FIRST, SECOND, THIRD]
        async with Guest(leases[0]) as first, Guest(leases[1]) as second, Guest(leases[2]) as third:
            guests = (first, second, third)
            for broadcast in (False, True):
                for guest, lease in zip(guests, leases, strict=True):
                    assert (await leased(guest, broadcast=broadcast)).address == lease.address
            for guest in guests:
                assert {each.hardware for each in answers(guest)} == {guest.mac}
                await advertised(guest)
                await advertised(guest, guest.link_local)


async def test_a_missing_program_is_named_with_its_package(service: Service, pid1: Pid1WithServers) -> None:
    async with service.running(DHCP, change=WITHOUT_DNSMASQ) as client:
        with pytest.raises(
            HostError, match="network default has dhcp = true or ra = true, but /no is missing"
        ) as error:
            await attached(client, "web")
        assert error.value.hint.startswith("Install dnsmasq-base (Debian), or leave out both of network.default")
    assert (pid1.asked, files(service)) == ([], [])
