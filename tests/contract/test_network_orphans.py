"""Orphaned taps, elements and leases, without the service and after its next start."""

import json
from pathlib import Path

from tests.contract.netns import run
from tests.contract.netservice import Service, udp

from solo5_systemd.network.netlink import link_index


def rewrite(lease: Path, **fields: object) -> None:
    lease.write_text(json.dumps(json.loads(lease.read_text()) | fields))


async def test_elements_without_a_lease_are_orphans_until_the_services_next_start(service: Service) -> None:
    async with service.running() as client:
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


async def test_a_running_service_removes_an_orphaned_tap_when_it_collects(service: Service) -> None:
    async with service.running() as client:
        lease = await client.lease("a")
        run("ip", "tuntap", "add", "s5-orphan", "mode", "tap")
        await client.collect(dry_run=True)
        assert link_index("s5-orphan")
        await client.collect(dry_run=False)
        assert not link_index("s5-orphan")
        assert link_index(lease.tap)


async def test_only_what_had_time_to_come_is_overdue(service: Service) -> None:
    async with service.running() as client:
        await client.lease("a")
        await client.lease("b")
        service.kill()
        rewrite(service.state / "tasks/a.json", expires=0)
        assert [record.reservation.task for record in await client.expired()] == ["a"]
        rewrite(service.state / "tasks/a.json", expires=1 << 40)
        await service.restart()
