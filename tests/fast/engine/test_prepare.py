"""The preparation of a declared task: complete, or undone."""

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
from tests.support.fakes.backends import Machine
from tests.support.fakes.background import yields
from tests.support.fakes.tasks import LEASE

from solo5_systemd.base.errors import HostError
from solo5_systemd.base.names import DeviceName, NetworkName, TaskName
from solo5_systemd.declared.update_request import next_task
from solo5_systemd.engine.prepare import prepare_start
from solo5_systemd.engine.runtime import Runtime
from solo5_systemd.network import remembered_addresses
from solo5_systemd.network.model import NicRequest, Reservation
from solo5_systemd.network.remembered_addresses import LastRequest, read_request
from solo5_systemd.storage.model import DiskRequest
from solo5_systemd.task.workload import Publish, Workload
from solo5_systemd.unit.tender import Parts, lasting_path

Prepare = Callable[[Workload], Coroutine[Any, Any, tuple[Parts, Sequence[int]]]]

WEB = TaskName("web")
DISK = DiskRequest(disk=DeviceName("storage"), path="/srv/disk.img")
WORKLOAD = Workload(name=WEB, image="/srv/full", disks=(DISK,), publish=(Publish(host_port=8080, port=80),))


def close(descriptors: Iterable[int]) -> None:
    for each in descriptors:
        os.close(each)


@pytest.fixture
def addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the addresses that tasks had last."""
    monkeypatch.setattr(remembered_addresses, "ADDRESSES", tmp_path / "declared")
    return tmp_path / "declared"


@pytest.fixture
def reported() -> list[str]:
    return []


@pytest.fixture
def prepare(machine: Machine, runtime: Runtime, addresses: Path, reported: list[str]) -> Prepare:
    return partial(prepare_start, machine.backends, report=reported.append)


async def test_all_but_the_unit_is_made_and_the_locks_are_kept(
    machine: Machine, prepare: Prepare, addresses: Path
) -> None:
    parts, held = await prepare(WORKLOAD)
    assert machine.holds == (set(), {WEB})
    assert parts.reservation == machine.networks.held[WEB]
    assert read_request(WEB) == LastRequest(**vars(machine.networks.held[WEB].request))
    assert machine.disks.owners == {"/srv/disk.img": machine.users.held[WEB]}
    assert "--net:service=tap2" in parts.device_options(lasting_path)
    [bound, lock] = held
    close((bound, lock))
    assert "start unit" not in machine.steps.taken


async def test_the_next_start_adopts_user_and_lease_and_writes_no_addresses_again(
    machine: Machine, prepare: Prepare, addresses: Path
) -> None:
    first, held = await prepare(WORKLOAD)
    close(held)
    before = (addresses / "web.json").stat().st_ino
    second, held = await prepare(WORKLOAD)
    close(held)
    assert (first.user, first.reservation) == (second.user, second.reservation)
    assert (addresses / "web.json").stat().st_ino == before


@pytest.mark.parametrize("fault", ["error", "cancelled"])
@pytest.mark.parametrize("step", ["acquire user", "reserve", "make disk", "bind disks", "change owner", "attach"])
async def test_a_preparation_that_fails_leaves_nothing(
    machine: Machine, prepare: Prepare, step: str, fault: str
) -> None:
    workload = replace(WORKLOAD, disks=(replace(DISK, create=1 << 20),))
    if fault == "error":
        machine.steps.errors[step] = HostError("broken.")
    else:
        machine.steps.hang_on = step
    preparing = asyncio.ensure_future(prepare(workload))
    if fault == "cancelled":
        await machine.steps.hanging.wait()
        preparing.cancel()
    with pytest.raises((HostError, asyncio.CancelledError)):
        await preparing
    machine.steps.go_on.set()
    await yields(100)
    assert machine.holds == (set(), set())
    assert (machine.disks.files, machine.disks.directories) == (set(), {})


async def test_a_task_without_nics_releases_what_it_had(machine: Machine, prepare: Prepare) -> None:
    del machine.disks  # which is imported for a task with disks only
    _, held = await prepare(Workload(name=WEB, image="/srv/plain"))
    assert (held, machine.networks.released) == ([], [WEB])
    assert "reserve" not in machine.steps.taken


@pytest.mark.parametrize("serves", [True, False])
async def test_ports_that_the_guest_of_an_update_has_are_left_to_it_while_it_serves(
    machine: Machine, runtime: Runtime, prepare: Prepare, *, serves: bool
) -> None:
    beside = next_task(WEB)
    close((await prepare(WORKLOAD))[1])
    await runtime.start(replace(WORKLOAD, name=beside, publish=()))
    await machine.networks.move_ports(WEB, beside)
    if not serves:
        await machine.units.stop(f"solo5-task-{beside}.service")
    parts, held = await prepare(WORKLOAD)
    close(held)
    assert [port.host_port for port in parts.reservation.ports] == [8080]
    assert (machine.networks.held[WEB].ports == ()) is serves
    assert (beside in machine.networks.held) is serves


async def test_damaged_addresses_are_none_and_reported(prepare: Prepare, addresses: Path, reported: list[str]) -> None:
    addresses.mkdir()
    (addresses / "web.json").write_text('[["service", 1]]')
    close((await prepare(WORKLOAD))[1])
    [text] = reported
    assert text.startswith("the addresses that the task had last are not known: ")
    assert read_request(WEB).nics


def test_a_request_has_precedence_and_another_network_other_addresses() -> None:
    last = LastRequest(**vars(Reservation(task=WEB, leases=(LEASE,)).request))
    [had] = last.nics
    open_, own = NicRequest(nic=LEASE.nic, network=LEASE.network), IPv4Address("10.1.2.3")
    found = last.with_addresses(open_)
    assert (found.ipv4, found.mac, found.ipv6) == (had.ipv4, had.mac, had.ipv6)
    assert last.with_addresses(replace(open_, ipv4=own)).ipv4 == own
    other = NicRequest(nic=LEASE.nic, network=NetworkName("other"))
    assert last.with_addresses(other) == other
