"""PID 1 writes a transient unit into a file and reads that again at daemon-reload: it reads the unit that was started.

Property by property, for texts of every kind that a job, an image or a file may bring; and nothing of them is read as a
directive.
"""

import asyncio
import os
import random
import shutil
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.machine.conftest import GUESTS, Files, Machine, Runner, ok, systemctl

from solo5_systemd.base.errors import InvalidRequestError, Solo5Error
from solo5_systemd.base.names import DeviceName, TaskName, UnitKind, task_service, unit_path
from solo5_systemd.bus.connection import system_bus
from solo5_systemd.bus.manager import Manager
from solo5_systemd.bus.peers import INTERFACES, PROPERTIES, UNIT
from solo5_systemd.engine.runtime import Runtime, connect
from solo5_systemd.settings.files import read_settings
from solo5_systemd.storage.model import DiskRequest
from solo5_systemd.task.properties import Property, TransientUnit, parse_property
from solo5_systemd.task.workload import Workload

SEED = int(os.environ.get("SEED", "11"))
TASK = TaskName("reload")
DISKS = 63
SHOWN_AS = {"StandardInputFile": "StandardInput"}
"""Properties that PID 1 has under another name than the one that they are set by."""

SPECIAL = (
    *" :\"'`%$\\;#=-+@!|&~*?[],",
    *("  ", "%n", "%%", "%h", "$$", "${HOME}", "$HOME", "\\x41", "\\n", "{{", "}}", "<3>", ".."),
)
LETTERS = [c for c in map(chr, range(0x21, sys.maxunicode)) if c.isprintable() and c not in "/\\{}"]
"""Every printable character of Unicode but a blank: each script's."""


def text(rng: random.Random, most: int = 40) -> str:
    """A text of special characters and of letters of every script, of at most so many bytes."""
    parts = (rng.choice(SPECIAL if rng.random() < 0.5 else LETTERS) for _ in range(rng.randrange(1, 12)))
    made = "".join(parts).encode()[:most].decode("utf-8", "ignore").rstrip("\\")
    return made or "a"


def argument(rng: random.Random) -> str:
    """The same without a brace, which is a placeholder's, unless doubled."""
    return text(rng).replace("{", "").replace("}", "").rstrip("\\") + rng.choice(("", "{{", "}}"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory whose own name is special, on a path that every user may search."""
    path = tmp_path / "a b:c\"d'e%n$HOME\\f é 磁盘"
    path.mkdir(parents=True)
    return path


def disks(rng: random.Random, folder: Path) -> tuple[DiskRequest, ...]:
    found = []
    for number in range(DISKS):
        path = folder / f"{number} {text(rng)}"
        path.write_bytes(f"disk {number}".encode().ljust(4096, b"\0"))
        ok("chown", "solo5:", str(path))
        found.append(DiskRequest(disk=DeviceName(f"storage{number}"), path=str(path)))
    return tuple(found)


def workload(rng: random.Random, folder: Path) -> Workload:
    image = folder / f"{TASK} {text(rng)}.spt"
    image.write_bytes((GUESTS / "disks63.spt").read_bytes())
    Path("/tmp", TASK).mkdir()
    return Workload(
        name=TASK,
        image=str(image),
        arguments=tuple(argument(rng) for _ in range(60)),
        cpus=rng.uniform(0.001, 3),
        cpu_weight=rng.randrange(1, 10000),
        disks=disks(rng, Path("/tmp", TASK)),
        log_fields=tuple((f"LABEL_{number}", text(rng)) for number in range(20)),
        description=text(rng, 300),
    )


async def shown(unit: str) -> dict[str, Any]:
    """Every property of a unit, as PID 1 has it now."""
    found: dict[str, Any] = {}
    async with system_bus() as connection:
        for interface in (UNIT, INTERFACES[UnitKind.SERVICE]):
            words = ("org.freedesktop.systemd1", unit_path(unit), PROPERTIES, "GetAll", "s", [interface])
            (answer,) = await connection.call(*words)
            found |= {name: variant.value for name, variant in answer.items()}
    for name in ("ExecStart", "ExecStartEx"):  # without how it went
        found[name] = [command[:3] for command in found[name]]
    found["IPAddressDeny"].sort()  # a set of PID 1's
    return found


@asynccontextmanager
async def engine() -> AsyncIterator[Runtime]:
    async with connect(read_settings) as runtime:
        yield runtime


async def _discard() -> None:
    async with engine() as runtime:
        await runtime.discard(TASK)


@pytest.fixture
def discarded(machine: Machine) -> Iterator[None]:
    """The task is removed when the test is over."""
    yield
    asyncio.run(_discard())
    shutil.rmtree(f"/tmp/{TASK}", ignore_errors=True)


@pytest.mark.usefixtures("discarded")
def test_tasks_are_after_a_reload_what_was_started(folder: Path) -> None:
    """Every property that a task's unit sets; 63 disks, each bound and read by its path."""
    rng = random.Random(SEED)
    unit, wanted = task_service(TASK), ["ExecStart", "ExecStartEx"]

    async def start() -> None:
        async with engine() as runtime:
            each = workload(rng, folder)
            plan = await runtime.starter.preview(each)
            wanted.extend(SHOWN_AS.get(entry.name, entry.name) for entry in plan.unit.properties)
            await runtime.start(each)
            assert (await runtime.wait(TASK)).outcome is not None

    asyncio.run(start())
    before = asyncio.run(shown(unit))
    systemctl("daemon-reload")
    after = asyncio.run(shown(unit))
    assert {"Description", "BindPaths", "LogExtraFields", "CPUQuotaPerSecUSec"} < set(wanted)
    differ = [f"{name}: {before[name]!r} → {after[name]!r}" for name in wanted if before[name] != after[name]]
    assert not differ, "\n".join((f"SEED={SEED}", *differ))
    said = ok("solo5ctl", "logs", TASK)
    assert [number for number in range(DISKS) if f"storage{number}: 'disk {number}'" not in said] == []


TEXTS = (
    "AllowedCPUs=0-3,6", "CPUQuota=150%", "CPUQuotaPeriodSec=10ms", "IOReadBandwidthMax=/dev/sda 10M",
    "IOWriteBandwidthMax=/dev/sda 7G", "IOReadIOPSMax=/dev/sda 5K", "IOWriteIOPSMax=/dev/sda 500", "KillSignal=SIGINT",
    "LimitCORE=3M", "LimitNOFILE=4096", "LogRateLimitIntervalSec=5min", "MemoryHigh=64M", "MemorySwapMax=1G", "Nice=-5",
    "OOMScoreAdjust=500", "RuntimeMaxSec=2h", "TasksMax=32", "TimeoutStopSec=1500ms",
)  # fmt: skip


@pytest.fixture
def written(place: Files) -> str:
    """A unit file with these texts."""
    unit = "solo5-task-written.service"
    place(f"/run/systemd/system/{unit}", "\n".join(("[Service]", "ExecStart=/usr/bin/true", *TEXTS, "")))
    systemctl("daemon-reload")
    return unit


def test_a_text_means_what_it_means_in_a_unit_file(written: str) -> None:
    """Suffixes above all: those of sizes are powers of 1024, those of rates of 1000."""
    read = asyncio.run(shown(written))
    for line in TEXTS:
        key, _, value = line.partition("=")
        ours = parse_property(key, value)
        assert comparable(read[ours.name]) == comparable(ours.value), line


def test_properties_of_an_operator_are_after_a_reload_what_was_set(run: Runner) -> None:
    unit = task_service(TaskName(run("sleeper.spt", options=tuple(f"--property={line}" for line in TEXTS))))
    names = [parse_property(*line.split("=", 1)).name for line in TEXTS]
    words = ("show", *(f"--property={name}" for name in names), unit)
    before = systemctl(*words)
    assert sorted(line.partition("=")[0] for line in before.splitlines()) == sorted(names)
    systemctl("daemon-reload")
    assert systemctl(*words) == before


def comparable(value: Any) -> Any:
    """Return a value without what PID 1 pads: the end of a bit mask; entries of lists are tuples."""
    if isinstance(value, bytes):
        return value.rstrip(b"\0")
    return [tuple(entry) for entry in value] if isinstance(value, list) else value


ENDS_OF_LINE = ("\n", "\r")


def directive(flag: Path, end: str) -> str:
    """A text that a unit file would read as a command of root's for the unit's end."""
    lines = ("x", "[Service]", "TemporaryFileSystem=", "BindPaths=", f"ExecStopPost=+/usr/bin/touch {flag}", "#")
    return end.join(lines)


def attacks(flag: Path, end: str, folder: Path) -> dict[str, Workload]:
    """One task for each way in which a job's text reaches its unit."""
    hostile = directive(flag, end)
    image = str(GUESTS / "sleeper.spt")
    disk = folder / hostile
    return {
        "description": Workload(name=TASK, image=image, description=hostile),
        "argument": Workload(name=TASK, image=image, arguments=(hostile,)),
        "journal field": Workload(name=TASK, image=image, log_fields=(("LABEL", hostile),)),
        "device of a limit": Workload(
            name=TASK, image=image, properties=(("IOReadBandwidthMax", f"/dev/{hostile} 1M"),)
        ),
        "disk": Workload(
            name=TASK,
            image=str(GUESTS / "netdisk.spt"),
            disks=(DiskRequest(disk=DeviceName("storage"), path=str(disk)),),
        ),
    }


@pytest.mark.usefixtures("discarded")
def test_no_text_of_a_job_becomes_a_directive(tmp_path: Path) -> None:
    """Each task is started with a command for root in one of its texts; then a reload, and its end."""
    started: list[str] = []
    refused: dict[str, str] = {}
    executed: list[str] = []

    async def attack(way: str, each: Workload, flag: Path) -> None:
        async with engine() as runtime:
            try:
                await runtime.start(each)
            except Solo5Error as error:
                refused[way] = error.sentence
            else:
                started.append(way)
                await asyncio.to_thread(systemctl, "daemon-reload")
                await runtime.discard(each.name)
                if flag.exists():
                    executed.append(way)
                    flag.unlink()

    for number, end in enumerate(ENDS_OF_LINE):
        flag = Path(f"/run/executed-{number}")
        for way, each in attacks(flag, end, tmp_path).items():
            for disk in each.disks:
                Path(disk.path).parent.mkdir(parents=True)
                Path(disk.path).write_bytes(bytes(4096))
                ok("chown", "solo5:", disk.path)
            with suppress(InvalidRequestError):
                asyncio.run(attack(f"{way} {end!r}", each, flag))
    assert executed == []
    assert {way.partition(" '")[0] for way in started} == {"description"}
    assert {way.partition(" '")[0] for way in refused} == {"argument", "journal field", "device of a limit", "disk"}
    assert all(sentence.isprintable() for sentence in refused.values())


async def test_a_text_that_other_code_forgot_to_check_does_not_reach_pid_1(machine: Machine) -> None:
    unit = TransientUnit(
        name=task_service(TASK),
        properties=(
            Property("Description", "s", directive(Path("/run/executed"), "\n")),
            Property("ExecStart", "a(sasb)", [("/usr/bin/true", ["true"], False)]),
        ),
    )
    async with system_bus() as connection:
        manager = Manager(connection)
        with pytest.raises(InvalidRequestError, match="unit property Description has the character .x0a"):
            await manager.start(unit)
        assert await manager.state(TASK) is None
