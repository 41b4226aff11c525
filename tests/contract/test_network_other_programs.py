"""Links, rules, ports and sysctls of other programs, which the service must not change or wait for."""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.contract.guest import Guest
from tests.contract.netns import run
from tests.contract.netservice import Service, host_state, nic, udp, until
from tests.contract.test_network_paths import ask_udp

from solo5_systemd.base.errors import TakenError
from solo5_systemd.base.names import TaskName

FORWARD = Path("/proc/sys/net/ipv4/ip_forward")
CONF = Path("/proc/sys/net/ipv4/conf")


async def test_an_address_stays_held_though_rules_and_service_are_gone(service: Service) -> None:
    await service.restart()
    async with service.client() as client:
        held = await client.lease("a")
    service.kill()
    run("nft", "flush", "ruleset")
    async with service.running() as client:
        with pytest.raises(TakenError, match="is taken by task a"):
            await client.reserve(TaskName("b"), (nic("service", ip=str(held.address)),), ())
        assert (await client.lease("b")).ipv4 != held.ipv4


async def test_taps_of_others_are_neither_counted_nor_removed(service: Service) -> None:
    for name in ("tap1", "miragetap1"):
        run("ip", "tuntap", "add", name, "mode", "tap")
    async with service.running() as client:
        await client.lease("a")
        await client.have("b", nics=(nic("service"), nic("management")))
        service.kill()
        await service.restart()
    for name in ("tap1", "miragetap1"):
        run("ip", "tuntap", "del", name, "mode", "tap")


async def test_rules_that_others_change_at_the_same_moment_are_no_hindrance(service: Service, tmp_path: Path) -> None:
    async with service.running() as client:
        with _busy("nft add table ip other; nft delete table ip other", tmp_path / "stop"):
            names = [f"t{number}" for number in range(20)]
            await asyncio.gather(*(client.lease(name, udp(5300 + n)) for n, name in enumerate(names)))
            await asyncio.gather(*(client.drop(name) for name in names))


async def test_rules_of_others_are_left_as_they_are(service: Service) -> None:
    run("nft", "add table ip nat; add chain ip nat POSTROUTING { type nat hook postrouting priority 100; }")
    before = host_state()
    async with service.running() as client:
        await client.lease("a", udp(5353))
        assert "table ip nat" in run("nft", "list", "ruleset")
    service.end()
    assert host_state() == before
    run("nft", "delete", "table", "ip", "nat")


async def test_no_program_is_looked_for_in_the_path(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as poor:
        poor.setenv("PATH", "/nonexistent")
        service.start()
    await service.ready()
    async with service.client() as client:
        async with Guest(await client.lease("a", udp(5353))):
            assert await ask_udp("127.0.0.1", 5353) == b"HELLO"
        await client.drop("a")


@pytest.mark.parametrize("before", ["0", "1"])
async def test_forwarding_is_on_while_it_is_needed_and_then_as_it_was(service: Service, before: str) -> None:
    """That of links: ip_forward is for other programs, which find it as it was, as is accept_redirects beside it."""
    run("ip", "link", "add", "kept", "type", "veth", "peer", "name", "other")
    FORWARD.write_text(before)
    (CONF / "all/accept_redirects").write_text("0")
    (CONF / "kept/forwarding").write_text("1")
    (CONF / "other/forwarding").write_text("0")
    settings = _ipv4_settings()
    async with service.running() as client:
        await client.lease("a")
        assert (FORWARD.read_text(), (CONF / "other/forwarding").read_text()) == (f"{before}\n", f"{1 - int(before)}\n")
        run("ip", "link", "add", "later", "type", "bridge")
        assert (CONF / "later/forwarding").read_text() == "1\n"
        run("ip", "link", "delete", "later")
        service.kill()
        await service.restart()
        await client.drop("a")
        assert FORWARD.read_text() == f"{before}\n"
        assert _ipv4_settings() == settings
    run("ip", "link", "del", "kept")
    FORWARD.write_text("0")


async def test_a_program_for_which_the_host_forwards_is_followed(service: Service) -> None:
    """Whoever sets ip_forward has packets between other links pass, until someone clears it; connections are kept."""

    def drops() -> bool:
        return "drop" in run("nft", "list", "chain", "ip", "solo5", "foreign")

    async with service.running() as client:
        await client.lease("a")
        tables = run("nft", "-a", "list", "tables")
        assert drops()
        FORWARD.write_text("1")
        await until(lambda: not drops())
        FORWARD.write_text("0")
        await until(drops)
        await until(lambda: (CONF / "lo/forwarding").read_text() == "1\n")
        FORWARD.write_text("1")
        await until(lambda: not drops())
        assert run("nft", "-a", "list", "tables") == tables
    assert (FORWARD.read_text(), (CONF / "lo/forwarding").read_text()) == ("1\n", "1\n"), "it is in use"
    FORWARD.write_text("0")


def _ipv4_settings() -> dict[str, str]:
    files = [*CONF.glob("*/forwarding"), *CONF.glob("*/accept_redirects")]
    return {str(file): file.read_text() for file in files}


@pytest.mark.parametrize(("ipv4", "broadcast"), [("10.77.0.0/16", "10.77.255.255"), ("10.77.0.0/28", "10.77.0.15")])
async def test_a_bridge_broadcasts_to_the_last_address_of_its_range(
    service: Service, ipv4: str, broadcast: str
) -> None:
    async with service.running(f'[network.default]\nipv4 = "{ipv4}"\n') as client:
        lease = await client.lease("a")
        [bridge] = json.loads(run("ip", "-j", "address", "show", "dev", lease.bridge))
        assert [address["broadcast"] for address in bridge["addr_info"]] == [broadcast]


@contextmanager
def _busy(script: str, stop: Path) -> Iterator[None]:
    """Run a shell script again and again in this network namespace; after the block, until it is done once more."""
    with subprocess.Popen(["sh", "-ec", f"while [ ! -e {stop} ]; do {script}; done"]) as shell:
        try:
            yield
            assert shell.poll() is None
        finally:
            stop.touch()
    assert shell.returncode == 0
