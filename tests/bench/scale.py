"""What the number of tasks itself costs: all of them started, the services killed beside them, all of them removed."""

import json
import subprocess
import time
from pathlib import Path

from tests.bench.driver import Driver
from tests.bench.figures import Figure, Report

LEASES = Path("/run/solo5/network/tasks")
"""One record for each task."""

INTERVAL_S = 0.01
TIMEOUT_S = 60


async def started(driver: Driver, report: Report, tasks: int) -> None:
    """Start tasks until so many run, 16 at a time; a start that fails ends the run."""
    before, begun = driver.grown, time.monotonic()
    await driver.grow(tasks)
    if tasks - before > 1:
        took = time.monotonic() - begun
        report.add(Figure(name=f"start of tasks {before + 1} to {tasks}, 16 at a time", unit="s", ours=took))


def services_killed(report: Report, tasks: int) -> None:
    """Kill each service with SIGKILL, and wait until its successor lists all tasks again."""
    taps = _taps()
    killed(report, "networkd", "Leases", tasks)
    killed(report, "relay", "List", tasks)
    assert _taps() == taps, "a tap was lost"


def killed(report: Report, service: str, method: str, tasks: int, what: str = "tasks") -> None:
    """Kill a service with SIGKILL, and wait until its successor lists so many tasks."""
    begun = time.monotonic()
    subprocess.run(["systemctl", "kill", "--signal=KILL", f"solo5-{service}.service"], check=True)
    while _listed(f"org.solo5.{service.removesuffix('d').capitalize()}1", method) < tasks:
        assert time.monotonic() - begun < TIMEOUT_S, f"solo5-{service} does not list {tasks} tasks"
        time.sleep(INTERVAL_S)
    name = f"solo5-{service}, from SIGKILL until it lists {tasks} {what}"
    report.add(Figure(name=name, unit="s", ours=time.monotonic() - begun))


async def removed(driver: Driver, report: Report) -> None:
    """Stop and destroy all tasks, 16 at a time; nothing of them is left."""
    tasks, begun = driver.grown, time.monotonic()
    await driver.clear(16)
    took = time.monotonic() - begun
    report.add(Figure(name=f"stop and removal of {tasks} tasks, 16 at a time", unit="s", ours=took))
    assert (_taps(), list(LEASES.iterdir())) == (0, [])


def _taps() -> int:
    return sum(path.name.startswith("s5-") for path in Path("/sys/class/net").iterdir())


def _listed(name: str, method: str) -> int:
    """Return how many tasks a service lists; 0 where it does not reply."""
    words = ("busctl", "--json=short", "call", name, f"/{name.replace('.', '/')}", name, method)
    done = subprocess.run(words, capture_output=True, check=False)
    return 0 if done.returncode else len(json.loads(done.stdout)["data"][0])
