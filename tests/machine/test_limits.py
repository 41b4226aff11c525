"""What the kernel holds a task to. Needs the controllers of cgroup v2: the `vm` backend has them."""

import json
import re
import shutil
import time
from pathlib import Path

import pytest

from .conftest import Runner, console, eventually, inspect, ok, says, unit_property

pytestmark = pytest.mark.vm
MIB = 1 << 20


def cgroup(name: str) -> Path:
    return Path("/sys/fs/cgroup" + unit_property(inspect(name)["unit"], "ControlGroup"))


@pytest.mark.parametrize("target", ["hvt", "spt"])
def test_memory_is_the_whole_allotment(run: Runner, target: str) -> None:
    """A guest that touches all of its memory stays within the unit's."""
    name = run(f"toucher.{target}", options=("-m", "32M"))
    says(name, "touched all")
    group = cgroup(name)
    assert (group / "memory.max").read_text().strip() == str(32 * MIB)
    assert (group / "memory.swap.max").read_text().strip() == "0"
    assert inspect(name)["phase"] == "running"
    free = re.search(r"memory (\d+) bytes", console(name))
    assert free is not None
    assert 16 * MIB <= int(free[1]) < 32 * MIB


@pytest.mark.parametrize("target", ["hvt", "spt"])
def test_out_of_memory_is_told_from_every_other_end(run: Runner, target: str) -> None:
    name = run(f"toucher.{target}", "mb=4", options=("-m", "64M"))
    says(name, "touched all")
    ok("solo5ctl", "rm", "-f", name)
    # The guest stays within its own memory; the slice above it has less.
    Path("/run/systemd/system/solo5-tight.slice.d").mkdir(parents=True)
    Path("/run/systemd/system/solo5-tight.slice.d/limit.conf").write_text("[Slice]\nMemoryMax=20M\n")
    ok("systemctl", "daemon-reload")
    name = run(f"toucher.{target}", options=("-m", "64M", "--property", "Slice=solo5-tight.slice"))
    ok("solo5ctl", "wait", name)
    assert inspect(name)["outcome"]["ending"] == "out-of-memory"
    assert "memory" in inspect(name)["outcome"]["sentence"]
    shutil.rmtree("/run/systemd/system/solo5-tight.slice.d")
    ok("systemctl", "stop", "solo5-tight.slice")
    ok("systemctl", "daemon-reload")


def test_cpu_quota_holds(run: Runner) -> None:
    name = run("spinner.spt", options=("--cpus", "0.25"))
    says(name, "spinning")
    stat = cgroup(name) / "cpu.stat"

    def used() -> int:
        found = re.search(r"usage_usec (\d+)", stat.read_text())
        assert found is not None
        return int(found[1])

    before, begun = used(), time.monotonic()
    time.sleep(3)
    share = (used() - before) / 1e6 / (time.monotonic() - begun)
    assert share < 0.40


def test_stats_are_the_kernels(run: Runner) -> None:
    name = run("toucher.hvt", "mb=16", options=("-m", "64M"))
    says(name, "touched all")
    [row] = json.loads(ok("solo5ctl", "stats", "--no-stream", "--json", name))
    memory = row["memory"]
    assert 16 * MIB <= memory["rss"] <= 24 * MIB, "a guest's memory is resident, though hvt shares it"
    assert memory["cache"] < 8 * MIB
    assert memory["limit"] == 64 * MIB
    assert memory["swap"] == 0
    assert row["cpu"]["total"] > 0


def test_tasks_are_limited(run: Runner) -> None:
    name = run("sleeper.hvt")
    eventually(lambda: (cgroup(name) / "pids.max").read_text().strip() == "16", "TasksMax")


def test_slice_holds_every_task(run: Runner) -> None:
    name = run("sleeper.spt")
    assert cgroup(name).parent.name == "solo5.slice"
