"""kill -9 at every step of a start and of a stop, and of the services while they are at it.

The task has one of everything that can be left behind. What starts or stops it is the engine in a process of its own,
which ends during or after one call of a backend; each call has its turn.
"""

import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path
from threading import Thread
from typing import NamedTuple

import pytest
from tests.machine.conftest import Machine, eventually, inspect, left_as_found, ok, registered, sh, unit_property
from tests.machine.fifos import Reader
from tests.machine.killing_itself import Life, Moment, order

from solo5_systemd.base.errors import HostError, TakenError
from solo5_systemd.bus.relay_client import Relay
from solo5_systemd.engine.backends import host_backends
from solo5_systemd.engine.runtime import Runtime
from solo5_systemd.settings import files

AT_ONCE = 3
"""Processes that kill themselves side by side: they have nothing in common."""

LOOKS = (
    "units.state units.is_running usages.total_memory usages.stalled tenders.find tenders.groups disks.inspect "
    "disks.check_bound networks.reservation"
).split()
"""Steps that change nothing: during and after them is the same moment."""

ROUNDS = 5
SOON = 10
"""Seconds that a call that died may cost a start and a stop, shorter than any time-out of theirs; on a busy machine, a
few times what they take there undisturbed besides."""

LEASES = Path("/run/solo5/network/tasks")
DROP_IN = Path("/run/systemd/system/solo5-networkd.service.d/impatient.conf")
PROGRAM = (
    "from solo5_systemd.networkd import leases, main; leases.RESERVATION_TIMEOUT_S = 20; raise SystemExit(main.main())"
)
IMPATIENT = f"[Service]\nExecStart=\nExecStart=/usr/bin/python3 -I -c '{PROGRAM}'\n"
"""solo5-networkd, at which a reservation without an attach expires after a third of its time."""

CONSOLES = Path("/run/solo5/relay")


class Point(NamedTuple):
    """Where a process ends itself, and the task that it has in hand."""

    life: Life
    number: int
    moment: Moment


class Killer(Thread):
    """kill -9 of a service of ours, some time from now."""

    def __init__(self, service: str, delay: float) -> None:
        super().__init__()
        self._service = service
        self._delay = delay

    def run(self) -> None:
        time.sleep(self._delay)
        pid = int(unit_property(self._service, "MainPID"))
        if pid:
            os.kill(pid, signal.SIGKILL)

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *exc: object) -> None:
        self.join()


class Lives:
    """Tasks, each with a disk, a port and two FIFOs of its own."""

    def __init__(self, directory: Path) -> None:
        self.all: list[Life] = []
        self._directory = directory
        self._console: dict[str, Reader] = {}
        self._text: defaultdict[str, bytes] = defaultdict(bytes)
        self._readers: list[Reader] = []

    def one(self, name: str) -> Life:
        disk = self._directory / f"{name}.img"
        disk.write_bytes(bytes(4096))
        shutil.chown(disk, "daemon")
        stdout, stderr = (Reader(self._directory / f"{name}.{stream}") for stream in ("stdout", "stderr"))
        self._readers += [stdout, stderr]
        self._console[name] = stdout
        self.all.append(
            Life(
                name=name,
                port=20000 + len(self._readers),
                disk=str(disk),
                stdout=str(stdout.path),
                stderr=str(stderr.path),
            )  # fmt: skip
        )
        return self.all[-1]

    def points(self, act: str, steps: list[str]) -> list[Point]:
        """Every moment of every step, each with a task of its own."""
        moments = [(n, m) for n, step in enumerate(steps) for m in Moment if step not in LOOKS or m is Moment.AFTER]
        return [Point(self.one(f"{act}-{number}-{moment}"), number, moment) for number, moment in moments]

    def said(self, life: Life) -> bytes:
        """What has come of its console."""
        self._text[life.name] += self._console[life.name].now()
        return self._text[life.name]

    def close(self) -> None:
        for reader in self._readers:
            reader.close()


@pytest.fixture(scope="module")
def lives() -> Iterator[Lives]:
    directory = Path("/srv/lives")
    directory.mkdir()
    shutil.chown(directory, "daemon")  # so that each disk is bound for its start
    subject = Lives(directory)
    yield subject
    subject.close()
    shutil.rmtree(directory)


def told(act: str, life: Life, number: int | None = None, moment: Moment = Moment.AFTER) -> list[str]:
    """The steps that a process took which was told to end itself at one of them."""
    words = [sys.executable, "-m", "tests.machine.killing_itself", order(act, life, number, moment)]
    done = subprocess.run(words, cwd="/srv", capture_output=True, text=True, timeout=60, check=False)
    taken = done.stdout.splitlines()
    if number is not None and done.returncode == 0:  # solo5-networkd had released before: a stop takes a step less then
        assert act == "stop", taken
        assert len(taken) == number, taken
        assert "networks.release" not in taken
    else:
        assert done.returncode == (0 if number is None else -signal.SIGKILL), done.stderr
    return taken


def engine(*acts: Callable[[Runtime, Relay], Awaitable[None]]) -> None:
    """Do something with the engine, in this process."""

    async def connected() -> None:
        async with host_backends(files.read_settings) as machine:
            for act in acts:
                await act(Runtime(machine), machine.relay)

    asyncio.run(connected())


def each(act: Callable[[Point], object], points: list[Point]) -> None:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(act, points))


def is_whole_or_nothing(life: Life) -> bool:
    """A unit with its network, the same unit ended and without one, or neither."""
    found = sh("solo5ctl", "inspect", "--json", life.name)
    if found.returncode != 0:
        return not has_lease(life)
    [task] = json.loads(found.stdout)
    if task["phase"] == "ended":
        return task["outcome"]["ending"] == "stopped" and not has_lease(life)
    return bool(task["phase"] == "running" and task["nics"])


def has_lease(life: Life) -> bool:
    return (LEASES / f"{life.name}.json").exists()


def nothing_is_left_of(life: Life) -> None:
    assert life.name not in registered()
    assert sh("solo5ctl", "inspect", life.name).returncode != 0
    assert not has_lease(life)
    assert not list(CONSOLES.glob(f"{life.name}.*"))
    assert f" {life.port} " not in ok("nft", "list", "ruleset")


@pytest.fixture(scope="module")
def impatient(booted: None) -> Iterator[None]:
    DROP_IN.parent.mkdir(parents=True)
    DROP_IN.write_text(IMPATIENT)
    restart = "systemctl daemon-reload; systemctl stop solo5-networkd"
    ok("sh", "-ec", restart)
    yield
    shutil.rmtree(DROP_IN.parent)
    ok("sh", "-ec", restart)


@pytest.fixture(scope="module")
def ground(impatient: None, lives: Lives) -> Iterator[Machine]:
    """The machine, for all tests here together: what is left alone is gone only after a while.

    A task that is left by a test that failed is removed, or the tests of other files would find it.
    """
    with left_as_found() as machine:
        machine.expect("expired|reservation|Main process exited|Failed (with result|to start)")
        machine.expect("Call failed: Message recipient disconnected|Control process exited, code=exited")
        machine.expect("network repaired: bridge")  # that was being made when the service was killed
        yield machine
        if names := {task["name"] for task in json.loads(ok("solo5ctl", "ps", "--all", "--json"))}:
            sh("solo5ctl", "rm", "--force", *names.intersection(life.name for life in lives.all))
        ok("solo5ctl", "gc")  # the users and bind mounts of starts that were killed


@pytest.fixture(scope="module")
def start_steps(ground: Machine, lives: Lives) -> list[str]:
    life = lives.one("whole")
    steps = told("start", life)
    engine(life.stop)
    return steps


@pytest.fixture(scope="module")
def left_alone(start_steps: list[str], lives: Lives) -> list[Point]:
    """Starts that were killed during each of their steps, and that nobody takes up again."""
    points = [Point(lives.one(f"alone-{number}"), number, Moment.DURING) for number in range(len(start_steps))]
    each(lambda point: told("start", point.life, point.number, point.moment), points)
    return points


def test_a_start_killed_at_any_step_can_be_made_again(
    left_alone: list[Point], start_steps: list[str], lives: Lives
) -> None:
    assert set(start_steps) >= {"relay.forward", "disks.lock", "networks.reserve", "networks.attach", "units.start"}

    def killed_and_made_again(point: Point) -> None:
        life = point.life
        told("start", life, point.number, point.moment)
        try:
            engine(life.start)
        except TakenError:
            eventually(lambda: inspect(life.name)["phase"] == "running", "the first start made a whole task")
        eventually(lambda: b"serving" in lives.said(life), "its console comes, and that is by the relay")
        engine(life.stop)
        assert lives.said(life).count(b"serving") == 1, "once"
        nothing_is_left_of(life)

    each(killed_and_made_again, lives.points("start", start_steps))


def test_a_stop_killed_at_any_step_can_be_made_again(ground: Machine, lives: Lives) -> None:
    life = lives.one("stopped")
    engine(life.start)
    steps = told("stop", life)
    assert set(steps) >= {"units.stop", "units.reset_failed", "relay.drain"}

    def killed_and_made_again(point: Point) -> None:
        life = point.life
        engine(life.start)
        told("stop", life, point.number, point.moment)
        eventually(lambda: is_whole_or_nothing(life), f"{life.name} is whole or nothing")
        engine(life.stop)
        nothing_is_left_of(life)

    each(killed_and_made_again, lives.points("stop", steps))


@pytest.mark.parametrize("service", ["solo5-networkd", "solo5-relay"])
def test_a_service_killed_while_it_is_called_does_its_work_or_reports_that_it_did_not(
    ground: Machine, lives: Lives, service: str
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    undisturbed = duration(lives.one(f"{service}-alive"), None)
    for number in range(ROUNDS):
        life = lives.one(f"{service}-{number}")
        killer = Killer(f"{service}.service", chance.uniform(0, 0.3))
        assert duration(life, killer) < SOON + 4 * undisturbed, "nobody waits for who waits for him"
        nothing_is_left_of(life)


def duration(life: Life, killer: Killer | None) -> float:
    """Seconds that a start and a stop take. A call that is lost says so: a start undoes itself, a stop is repeated."""
    begun = time.monotonic()
    with killer or nullcontext(), suppress(HostError):
        engine(life.start, life.stop)
    engine(life.stop)
    return time.monotonic() - begun


def test_what_is_left_alone_is_complete_or_is_removed(left_alone: list[Point]) -> None:
    def goes(point: Point) -> None:
        life = point.life
        try:
            eventually(lambda: is_whole_or_nothing(life), f"{life.name} is whole or nothing")
        except AssertionError as error:
            found = sh("solo5ctl", "inspect", "--json", life.name)
            error.add_note(f"lease: {has_lease(life)}; task: {found.stdout}{found.stderr}")
            raise
        engine(life.stop)
        nothing_is_left_of(life)

    each(goes, left_alone)
