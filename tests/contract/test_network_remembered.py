"""The addresses that declared tasks had last: chosen for another task only where a network has no other left."""

import asyncio
from ipaddress import IPv4Network
from pathlib import Path

import pytest
from tests.contract.netns import run
from tests.contract.netservice import Client, Service, nic

from solo5_systemd.base.errors import TakenError
from solo5_systemd.base.names import TaskName
from solo5_systemd.network.remembered_addresses import LastRequest, write_request

SMALL = "[network.default]\nipv4 = '10.77.0.0/28'\n"
GUESTS = 13
"""Of a /28: neither its own address, nor that for broadcasts, nor the gateway's."""

WEB = TaskName("web")

_RECORDING = """
import os, sys
from solo5_systemd.networkd import main as program

log = open({log!r}, "a", buffering=1)
writing = False

def record(event, arguments):
    global writing
    if event not in ("open", "os.scandir") or writing:
        return
    path = str(arguments[0])
    if path.startswith("/proc/self/fd/"):  # a file whose directories were opened one after the other
        path = os.readlink(path)
    if path.startswith(({directory!r}, "declared")):
        writing = True
        print(event, path, file=log)
        writing = False

sys.addaudithook(record)
sys.exit(program.main())
"""
"""The service with a record of the files of addresses that it opens: each in its directory, and to be read."""


def remember(service: Service, task: str, ip: str) -> None:
    write_request(TaskName(task), LastRequest(nics=(nic("service", ip=ip),)))


async def addresses(client: Client, count: int) -> list[str]:
    """The addresses of new tasks, in turn."""
    return [str((await client.lease(f"task{number}")).address) for number in range(count)]


async def test_what_a_stopped_task_had_is_given_away_last_and_named(service: Service) -> None:
    async with service.running(SMALL) as client:
        lease = await client.lease("web")
        had = str(lease.address)
        await client.drop("web")
        remember(service, "web", had)
        remember(service, "other", "10.77.0.14")
        made = await addresses(client, GUESTS - 2)
        assert {had, "10.77.0.14"}.isdisjoint(made)
        again = await client.lease("web")
        assert (str(again.address), again.mac) == (had, lease.mac), "its own, without a request by value"
        assert "declared task" not in service.log.read_text()
        assert str((await client.lease("last")).address) == "10.77.0.14"
        assert (
            "task last has the address 10.77.0.14 of network default, which declared task other had last"
            in service.log.read_text()
        )
        with pytest.raises(TakenError, match="has no free address for NIC service"):
            await client.lease("more")


async def test_no_file_is_opened_for_a_start_unless_one_has_changed(service: Service, tmp_path: Path) -> None:
    log = tmp_path / "opened"
    for number in range(200):
        remember(service, f"declared{number}", f"10.153.0.{number + 2}")
    service.start(program=("-c", _RECORDING.format(log=str(log), directory=str(service.addresses))))
    await service.ready()
    count = 0

    async def opened(client: Client) -> list[str]:
        """What one Reserve and Attach opens."""
        nonlocal count
        count += 1
        log.write_text("")
        await client.lease(f"task{count}")
        found = log.read_text().splitlines()
        await client.drop(f"task{count}")
        return found

    async with service.client() as client:
        read = [line for line in await opened(client) if line.startswith(f"open {service.addresses}/")]
        assert sorted(read) == sorted(f"open {service.addresses}/declared{number}.json" for number in range(200))
        async with asyncio.timeout(10):
            while await opened(client):  # noqa: ASYNC110 - a young change is looked for each time
                await asyncio.sleep(0.1)
        remember(service, "declared7", "10.153.0.240")
        changed = [line for line in await opened(client) if line.startswith("open ")]
        assert changed == ["open declared7.json", f"open {service.addresses}/declared7.json"]


async def test_a_network_has_the_range_of_its_declared_tasks_again(service: Service) -> None:
    """Also where the range that it would choose is free by now: at a boot before a VPN has its routes."""
    (service.settings / "solo5.toml").write_text("[network.default]\nipv6 = true\n")
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
