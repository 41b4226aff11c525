"""The floor of starts and of pairs: the same units, started and stopped by the cheapest client.

tests/bench/README.md has the calls and what is not among them.

The driver's own code makes the units, except for the network unit. They are handed to `floor.c` with the messages for
the kernel, so that both sides start the same unit.
"""

import asyncio
import contextlib
import itertools
import json
import os
import subprocess
import uuid
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from ipaddress import IPv4Interface
from pathlib import Path

import msgpack
from tests.bench import nft_batch, processes
from tests.bench.driver import CONFIG, GUESTS, Pairs

from solo5_systemd.base.names import TaskName, network_service, outcome_target
from solo5_systemd.bus.manager import Manager
from solo5_systemd.engine.backends import host_backends
from solo5_systemd.engine.runtime import Runtime
from solo5_systemd.network.model import Lease, LeaseRecord, LeaseState, MacAddress, PortRequest, Protocol, Reservation
from solo5_systemd.network.netlink import link_index
from solo5_systemd.network.nft_elements import Ruleset, record_elements
from solo5_systemd.network.nft_objects import TABLE
from solo5_systemd.network.nft_rules import tables
from solo5_systemd.network.tap_counters import tap_alias
from solo5_systemd.nomad.plugin_config import PluginConfig
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.nomad.start import agent_id
from solo5_systemd.nomad.task_options import task_options
from solo5_systemd.nomad.workload import workload_of
from solo5_systemd.settings.files import read_settings
from solo5_systemd.task.properties import Property, TransientUnit
from solo5_systemd.task.workload import Workload
from solo5_systemd.unit.translate import service

PROGRAM = "/usr/local/bin/floor"
NETWORK = Path("/run/systemd/system/solo5-floor-network@.target")
NETWORK_UNIT = """\
[Unit]
DefaultDependencies=no
StopWhenUnneeded=yes
"""
"""A target, since systemd refuses a service that executes nothing at all."""

SETTINGS = Path("/etc/solo5/bench.toml")
FIRST_PORT = 40000
"""First published port; the driver's tasks have lower ones."""

TIMEOUT_S = 300
"""For one run of the program."""

PORTS = ((80, Protocol.TCP), (7, Protocol.UDP))


class Floor:
    """Starts and stops such units. Users, properties and messages are made before the clock starts."""

    def __init__(self, engine: Runtime, manager: Manager) -> None:
        self._engine = engine
        self._users = engine.backends.users
        self._manager = manager
        self._numbers = itertools.count()  # a new name each time: the last unit may not be unloaded yet

    async def starts(self, rounds: int, at_once: int) -> Sequence[float]:
        """Start `at_once` tasks and stop them, `rounds` times; return the milliseconds of each start."""
        return (await self._run("starts", rounds * at_once, at_once)).milliseconds

    async def pairs(self, count: int, at_once: int) -> Pairs:
        """Start and stop `count` tasks."""
        return await self._run("pairs", count, at_once)

    async def _run(self, mode: str, count: int, at_once: int) -> Pairs:
        names = [TaskName(f"floor-{number}") for number in itertools.islice(self._numbers, count)]
        plan = await self._engine.starter.preview(_workload(names[0]))
        [nic] = plan.reservation.leases
        async with self._allocated(names) as users:
            words: list[object] = [link_index(nic.bridge)]
            for number, name in enumerate(names):
                lease = _lease(nic, number)
                ports = [
                    PortRequest(nic=lease.nic, host_port=FIRST_PORT + 2 * number + offset, port=port, protocol=protocol)
                    for offset, (port, protocol) in enumerate(PORTS)
                ]
                reservation = Reservation(task=name, leases=(lease,), ports=tuple(ports))
                parts = replace(plan, workload=_workload(name), reservation=reservation, user=users[name])
                words += _words(service(parts), reservation, users[name])
            return await self._executed(mode, at_once, "".join(f"{word}\n" for word in words))

    async def _executed(self, mode: str, at_once: int, tasks: str) -> Pairs:
        pipe = asyncio.subprocess.PIPE
        with processes.frozen():
            before = processes.spent({})
            process = await asyncio.create_subprocess_exec(PROGRAM, mode, str(at_once), stdin=pipe, stdout=pipe)
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    printed, _ = await process.communicate(tasks.encode())
            except BaseException:
                process.kill()
                raise
            spent = processes.spent({})
        assert process.returncode == 0, f"{PROGRAM} has failed"
        left = [name for name in await self._manager.names() if name.startswith("floor-")]
        assert not left, f"units are left: {left}"
        report = json.loads(printed)
        cpu = processes.difference(spent, before, also={"client": report["cpu"]})
        return Pairs(milliseconds=report["milliseconds"], seconds=report["seconds"], cpu=cpu)

    @contextlib.asynccontextmanager
    async def _allocated(self, names: Sequence[TaskName]) -> AsyncIterator[Mapping[TaskName, int]]:
        """Allocate the users, without which PID 1 refuses the units."""
        held = {name: await self._users.acquire(name) for name in names}
        try:
            yield {name: user.uid for name, user in held.items()}
        finally:
            for name, user in held.items():
                os.close(user.descriptor)
                await self._users.release(name)


@contextlib.asynccontextmanager
async def floor(settings: str) -> AsyncIterator[Floor]:
    """Yield the floor, on a machine that has these settings for both sides."""
    with _files({NETWORK: NETWORK_UNIT, SETTINGS: settings}), _sets():
        async with host_backends(read_settings) as backends:
            yield Floor(Runtime(backends), backends.units)


def _workload(name: TaskName) -> Workload:
    """Return the workload that the driver makes of the task of `tests.bench.driver`."""
    alloc = str(uuid.uuid4())
    task = wire.TaskConfig(
        id=f"{alloc}/guest/{name}",
        name="guest",
        job_name="bench",
        job_id="bench",
        task_group_name="guest",
        namespace="default",
        alloc_id=alloc,
        msgpack_driver_config=msgpack.packb({key: value for key, value in CONFIG.items() if key != "ports"}),
        resources=wire.Resources(
            allocated_resources=wire.AllocatedTaskResources(memory=wire.AllocatedMemoryResources(memory_mb=32)),
            linux_resources=wire.LinuxResources(cpu_shares=100),
        ),
    )
    options, plugin = task_options(task.msgpack_driver_config), PluginConfig(image_paths=(GUESTS,))
    workload = workload_of(task, options, plugin, os.cpu_count() or 1)
    return replace(workload, name=name, log_fields=(*workload.log_fields, ("SOLO5_AGENT", agent_id())))


def _lease(nic: Lease, number: int) -> Lease:
    """Return the NIC of a preview with a tap, an address and a MAC that no task has."""
    return replace(
        nic,
        tap=f"floor-{number}",
        ipv4=IPv4Interface(f"10.200.{number // 200}.{number % 200 + 2}/16"),
        mac=MacAddress(f"02:f1:00:00:{number >> 8:02x}:{number & 255:02x}"),
    )


def _words(unit: TransientUnit, reservation: Reservation, user: int) -> Iterator[object]:
    """Yield one task, as `floor.c` reads it."""
    [lease] = reservation.leases
    elements = record_elements(LeaseRecord(reservation=reservation, state=LeaseState.ATTACHED, expires=0), ())
    network = [f"solo5-floor-network@{reservation.task}.target"]
    assert unit.value("Requires") == [network_service(reservation.task)]
    yield from (unit.name, outcome_target(reservation.task))
    yield from (lease.tap, tap_alias(reservation.task, lease.nic), user)
    yield from (nft_batch.add(FLOOR_TABLE, elements).hex(), nft_batch.delete(FLOOR_TABLE, elements).hex())
    # The floor's tap is the bridge's port: a namespace for it is part of what is measured.
    properties = [each for each in unit.properties if each.name != "NetworkNamespacePath"]
    yield len(properties)
    for each in properties:
        value = network if each.name in ("Requires", "After") else each.value
        yield from _property(replace(each, value=value))


def _property(each: Property) -> Iterator[object]:
    yield from (each.name, each.signature, *_flat(each.signature, each.value))


def _flat(signature: str, value: object) -> Iterator[object]:
    """Yield a D-Bus value as words: an array is preceded by its length, a struct is flat."""
    match signature[0], value:
        case "a", list() | tuple() | bytes() as items:
            yield len(items)
            for item in items:
                yield from _flat(signature[1:], item)
        case "(", list() | tuple() as items:
            for inner, item in zip(_complete_types(signature[1:-1]), items, strict=True):
                yield from _flat(inner, item)
        case "b", _:
            yield int(bool(value))
        case _:
            yield value


def _complete_types(signature: str) -> Iterator[str]:
    start = depth = 0
    for end, letter in enumerate(signature, 1):
        depth += (letter == "(") - (letter == ")")
        if not depth and letter != "a":
            yield signature[start:end]
            start = end


FLOOR_TABLE = f"{TABLE}-floor"


@contextlib.contextmanager
def _sets() -> Iterator[None]:
    """Make the sets and maps of solo5-networkd in other tables: its own have an owner, which alone may change them.

    Rules are left out, since a transaction with elements does not touch them.
    """
    ours = "".join(tables(Ruleset(), owned=False).values()).replace(f" {TABLE} {{", f" {FLOOR_TABLE} {{").splitlines()
    _nft(line for line in ours if line.startswith(("table ", "    set ", "    map ", "}")))
    try:
        yield
    finally:
        _nft(f"delete {line.removesuffix(' {')}" for line in ours if line.startswith("table "))


def _nft(lines: Iterable[str]) -> None:
    subprocess.run(["nft", "--file", "-"], input="\n".join(lines) + "\n", text=True, check=True)


@contextlib.contextmanager
def _files(contents: Mapping[Path, str]) -> Iterator[None]:
    """The machine's configuration with these files."""
    for path, text in contents.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    subprocess.run(["systemctl", "daemon-reload"], check=True)
    try:
        yield
    finally:
        for path in contents:
            path.unlink()
        subprocess.run(["systemctl", "daemon-reload"], check=True)
