"""Rate limits of a NIC, measured by the kernel's counters while more is sent than is permitted."""

import json
import socket
import time
from collections.abc import Callable
from ipaddress import IPv4Address

import pytest
from tests.contract.guest import UDP, Guest, _udp
from tests.contract.netns import Outside, run
from tests.contract.netservice import Client, Service, host_state, nic, until

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.base.names import TaskName
from solo5_systemd.network.model import Lease, Limits
from solo5_systemd.settings.rate import rate

SECONDS = 1.5
"""The time of a flood."""

FLOODS = 8

HEADERS = 28


def at(*texts: str) -> Limits:
    return Limits(rate=rate(texts))


async def have(client: Client, task: str, limits: Limits, network: str = "default") -> Lease:
    return (await client.have(task, nics=(nic("service", network, limits=limits),))).leases[0]


def over(direction: str, tap: str) -> int:
    """Return the frames that the rate limit of a direction has dropped."""
    listed = json.loads(run("nft", "-j", "list", "set", "bridge", "solo5", f"over_{direction}"))["nftables"]
    found = [each["elem"] for item in listed for each in item.get("set", {}).get("elem", ())]
    return sum(each["counter"]["packets"] for each in found if each["val"] == tap)


def passed() -> tuple[int, int]:
    """Return the bytes and packets that have passed a rule of this test: those of UDP port 7."""
    [counter] = [item["counter"] for item in json.loads(run("nft", "-j", "list", "counters"))["nftables"][1:]]
    return counter["bytes"], counter["packets"]


def count(hook: str) -> None:
    """Count the datagrams for port 7 behind the rules of the service."""
    run("nft", "add table bridge test; add counter bridge test seen")
    run("nft", f"add chain bridge test c {{ type filter hook {hook} priority 400; }}")
    run("nft", 'add rule bridge test c udp dport 7 counter name "seen"')


def flood(send: Callable[[], object], seconds: float) -> float:
    """Send as fast as possible for some seconds, and return how many it were."""
    begun = time.monotonic()
    while time.monotonic() - begun < seconds:
        for _ in range(20):
            send()
    return time.monotonic() - begun


def is_held(send: Callable[[], object], direction: str, tap: str, at: int, *, packets: bool) -> bool:
    """Return whether as many bytes or packets pass as a limit permits, and no more.

    Fewer pass where this process does not run all the time, as on a busy machine: one flood of several has to reach it.
    """
    found: list[float] = []
    while not found or (found[-1] < 0.8 * at and len(found) < FLOODS):
        found.append(measure(send, direction, tap)[packets])
    return max(found) <= 1.2 * at and found[-1] >= 0.8 * at


def measure(send: Callable[[], object], direction: str, tap: str) -> tuple[float, float]:
    """Return the bytes and packets per second that pass during a flood, once it is above the limit."""
    while not over(direction, tap):
        flood(send, 0.05)
    before, dropped = passed(), over(direction, tap)
    seconds = flood(send, SECONDS)
    found, packets = (now - then for now, then in zip(passed(), before, strict=True))
    assert over(direction, tap) - dropped > packets, "there was more than is permitted"
    return found / seconds, packets / seconds


@pytest.mark.parametrize(
    ("text", "size", "per_second"),
    [("sent=1M", 1000, 1_000_000), ("sent=200K", 200, 200_000), ("sent-packets=500", 100, 500)],
)
async def test_what_a_guest_sends_is_held_within_its_limit(
    service: Service, outside: Outside, text: str, size: int, per_second: int
) -> None:
    async with service.running() as client, Guest(await have(client, "a", at(text))) as guest:
        count("prerouting")
        data = _udp(4000, 7, bytes(size - HEADERS))
        frame = guest.ipv4(await guest.resolve(guest.gateway), IPv4Address(outside.address), UDP, data)
        assert is_held(lambda: guest.send(frame), "sent", guest.tap, per_second, packets="packets" in text)
        run("nft", "delete table bridge test")


@pytest.mark.parametrize(
    ("text", "size", "per_second"), [("received=1M", 1000, 1_000_000), ("received-packets=500", 100, 500)]
)
async def test_what_a_guest_receives_is_held_within_its_limit(
    service: Service, text: str, size: int, per_second: int
) -> None:
    async with service.running() as client, Guest(await have(client, "a", at(text))) as guest:
        count("postrouting")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"FIRST", (str(guest.ip), 7))
            await guest.heard(lambda frame: b"FIRST" in frame)
            data = b"\0" * (size - HEADERS)

            def send() -> object:
                return sender.sendto(data, (str(guest.ip), 7))

            assert is_held(send, "received", guest.tap, per_second, packets="packets" in text)
        run("nft", "delete table bridge test")


async def test_a_guest_without_a_limit_is_not_slowed_down_by_its_neighbours(service: Service, outside: Outside) -> None:
    async with (
        service.running() as client,
        Guest(await have(client, "a", at("sent-packets=10", "received-packets=10"))),
        Guest(await client.lease("b")) as guest,
    ):
        count("prerouting")
        data = _udp(4000, 7, b"x")
        frame = guest.ipv4(await guest.resolve(guest.gateway), IPv4Address(outside.address), UDP, data)
        for _ in range(1000):
            guest.send(frame)
        await until(lambda: passed()[1] == 1000)
    run("nft", "delete table bridge test")


async def test_the_networks_limit_is_for_all_and_a_job_can_only_lower_it(service: Service) -> None:
    settings = service.settings / "solo5.toml"
    settings.write_text('[network.default]\nrate = ["sent=1M", "received-packets=500"]\n')
    await service.restart()

    async with service.client() as client:
        for cell, wanted in (("sent=2M", "sent=1M"), ("received-packets=501", "received-packets=500")):
            expected = f"rate {cell} is above the limit of network default for NIC service: expected {wanted[-2:]}"
            with pytest.raises(InvalidRequestError, match=expected[:60]):
                await client.reserve(TaskName("a"), (nic("service", limits=at(cell)),), ())
        await have(client, "a", Limits())
        await have(client, "b", at("sent=500K"))
        rates = run("nft", "list", "limits", "table", "bridge", "solo5")
        assert rates.count("rate over 1000000 bytes/second") == rates.count("rate over 500000 bytes/second") == 1
        assert rates.count("rate over 500/second") == 2
        settings.write_text('[network.default]\nrate = ["sent=300K"]\n')
        service.end()
        await service.restart()
        rates = run("nft", "list", "limits", "table", "bridge", "solo5")
        assert rates.count("rate over 300000 bytes/second") == 2
        assert "rate over 500/second" not in rates
    async with service.client() as client:
        await client.drop("a")
        await client.drop("b")


async def test_a_limit_outlives_its_tap_and_ends_with_its_task(service: Service) -> None:
    async with service.running() as client:
        await client.lease("b")
        before = host_state()
        lease = await have(client, "a", at("sent-packets=100"))
        run("ip", "link", "delete", lease.tap)
        await until(lambda: lease.tap in run("ip", "link"))
        async with Guest(lease) as guest:
            frame = guest.ipv4(await guest.resolve(guest.gateway), IPv4Address("192.0.2.9"), UDP, _udp(1, 7, b"x"))
            for _ in range(500):
                guest.send(frame)
            assert over("sent", lease.tap) > 300
        await client.drop("a")
        assert host_state() == before


async def test_a_limit_applies_on_a_bridge_of_others(service: Service) -> None:
    (service.settings / "solo5.toml").write_text('[network.lan]\njoin = "br0"\nrate = ["sent-packets=100"]\n')
    run("ip", "link", "add", "br0", "type", "bridge")
    run("ip", "link", "set", "br0", "up")
    async with service.running() as client:
        lease = await have(client, "a", Limits(), "lan")
        async with Guest(lease) as guest:
            for _ in range(500):
                guest.send(guest.arp(1, b"\xff" * 6, IPv4Address("192.0.2.9")))
            assert over("sent", lease.tap) > 300
    run("ip", "link", "delete", "br0")
