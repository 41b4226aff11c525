"""What a disk costs a start, of each kind beside a start without.

The engine starts an spt guest without devices, and the same kind of guest with one disk, in turns.
"""

import asyncio
import os
import time
from argparse import Namespace
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from tests.bench.figures import Report, times
from tests.contract.netns import run
from tests.machine import records
from tests.machine.conftest import DISKS

from solo5_systemd.base.names import DeviceName, DiskName, TaskName
from solo5_systemd.engine.runtime import Runtime, connect
from solo5_systemd.settings import files
from solo5_systemd.storage.archive import archive_disk, member
from solo5_systemd.storage.model import ArchiveRequest, DiskRequest, named_disk
from solo5_systemd.task.workload import MIB, Workload

GUESTS = Path("/srv/guests")
STORAGE = DeviceName("storage")
DATA = 64 * MIB
"""What the disk of 1 GB has; the rest is a hole."""

FILE = Path("/var/tmp/bench-64k")
TASK = TaskName("bench-disk")


def requests() -> Mapping[str, DiskRequest]:
    """Return the disks to compare."""
    archive = ArchiveRequest(members=(member("config", str(FILE)),))
    return {
        "a disk": named_disk(STORAGE, DiskName("bench")),
        "an ephemeral 1 GB disk": named_disk(STORAGE, DiskName("bench"), private=True),
        "a 64 KB archive": archive_disk(STORAGE, archive),
    }


def measure(report: Report, options: Namespace) -> None:
    """Add the figures: with blocks of the private copy shared, where the machine has XFS, and with them copied."""
    FILE.write_bytes(os.urandom(64 << 10))
    try:
        for where in ("blocks shared", "data copied") if records.can_share_blocks() else ("data copied",):
            with ExitStack() as stack:
                if where == "blocks shared":
                    stack.enter_context(records.reflinks_of_copies())
                _make(stack)
                asyncio.run(_compare(report, options.rounds * 2, where))
    finally:
        FILE.unlink()


def _make(stack: ExitStack) -> None:
    run("solo5ctl", "disk", "create", "bench", "1G")
    stack.callback(run, "solo5ctl", "disk", "rm", "bench")
    with (DISKS / "bench").open("r+b") as file:
        file.write(os.urandom(DATA))
        os.fsync(file.fileno())


async def _compare(report: Report, rounds: int, where: str) -> None:
    kinds = requests()
    took: dict[str, list[float]] = {"": [], **{name: [] for name in kinds}}
    async with connect(files.read_settings) as engine:
        for turn in range(rounds + 1):
            for name in took:
                milliseconds = await _start(engine, kinds.get(name))
                if turn:  # not the first: the image store
                    took[name].append(milliseconds)
    for name in kinds:
        if where == "blocks shared" or not records.can_share_blocks() or "ephemeral" in name:
            how = f", {where}" if "ephemeral" in name else ""
            report.add(times(f"start with {name}{how}", took[name], took[""]))


async def _start(engine: Runtime, disk: DiskRequest | None) -> float:
    """Return the milliseconds of one start."""
    image, words = (GUESTS / "disk.spt", ("stay",)) if disk else (GUESTS / "sleeper.spt", ())
    workload = Workload(name=TASK, image=str(image), arguments=words, memory=16 * MIB, disks=(disk,) if disk else ())
    begun = time.perf_counter()
    try:
        await engine.start(workload)
        return (time.perf_counter() - begun) * 1000
    finally:
        await engine.discard(TASK)
