"""The limits of a Nomad task: of its unit, and, with the controllers of cgroup v2 of the `vm` backend, the kernel's."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.machine.conftest import GUESTS, eventually, ok, unit_property
from tests.machine.nomad.agent import Agent, api
from tests.machine.nomad.jobs import SLEEPER, Allocation, Jobs, ended, hcl

MIB = 1 << 20
ALLOTMENT = "cpu = 200\nmemory_max = 64"


def cgroup(alloc: Allocation) -> Path:
    return Path("/sys/fs/cgroup" + unit_property(alloc.unit(), "ControlGroup"))


def processors(alloc: Allocation) -> str:
    """Return the processors that the tender may use, such as ``0-1``."""
    status = Path("/proc", unit_property(alloc.unit(), "MainPID"), "status").read_text()
    return next(line.split()[1] for line in status.splitlines() if line.startswith("Cpus_allowed_list:"))


def test_an_allotment_is_that_of_the_unit(jobs: Jobs) -> None:
    [alloc] = jobs.run(hcl("shared", SLEEPER, memory=48, resources=ALLOTMENT))
    limits = {name: unit_property(alloc.unit(), name) for name in ("MemoryMax", "MemorySwapMax", "CPUWeight", "Slice")}
    assert limits == {
        "MemoryMax": str(64 * MIB), "MemorySwapMax": "0", "CPUWeight": "20", "Slice": "solo5-shared.slice",
    }  # fmt: skip


@pytest.mark.vm
@pytest.mark.long
def test_allotment_is_the_cgroups_and_reserved_cores_are_the_tasks_own(jobs: Jobs) -> None:
    """A task with a reserved core has it alone: the shared cores shrink, and grow again at its end."""
    [other] = jobs.run(hcl("shared", SLEEPER, memory=48, resources=ALLOTMENT))
    group = cgroup(other)
    assert int((group / "memory.max").read_text()) == 64 * MIB
    assert (group / "memory.swap.max").read_text().strip() == "0"
    assert int((group / "cpu.weight").read_text()) == 20
    [alloc] = jobs.run(hcl("reserved", SLEEPER, resources="cores = 1"))
    own = processors(alloc)
    rest = {"0": "1", "1": "0"}[own]
    eventually(lambda: processors(other) == rest, "the other task keeps away from the reserved core")
    ok("nomad", "job", "stop", "-detach", "reserved")
    ended("reserved")
    eventually(lambda: processors(other) == "0-1", "the core is shared again")


@pytest.fixture
def tight(agent: Agent) -> Iterator[None]:
    """A memory limit for all tasks that is below the limit of a single one."""
    ok("systemctl", "set-property", "--runtime", "solo5.slice", "MemoryMax=20M")
    yield
    ok("systemctl", "revert", "solo5.slice")


@pytest.mark.vm
@pytest.mark.long
def test_out_of_memory_is_an_event_of_its_own(jobs: Jobs, tight: None) -> None:
    alloc = ended(jobs.submit(hcl("eater", f'unikernel = "{GUESTS}/toucher.hvt"', kind="batch", memory=64)))
    [terminated] = [event for event in alloc.task()["Events"] if event["Type"] == "Terminated"]
    assert terminated["Details"]["oom_killed"] == "true", alloc.status()
    assert "OOM-killed: the host or a slice ran out of memory" in terminated["DisplayMessage"], alloc.status()
    eventually(lambda: any(event["Details"].get("memory_peak") for event in alloc.task()["Events"]), "our event's peak")


TUNED = f"""
unikernel      = "{GUESTS}/toucher.spt"
args           = ["mb=16"]
cpu_hard_limit = true
properties {{
  MemoryLow          = "16M"
  MemorySwapMax      = "24M"
  OOMScoreAdjust     = "345"
  AllowedMemoryNodes = "0"
  CPUQuotaPeriodSec  = "20ms"
  IOWeight           = "321"
}}
"""


def usage(alloc: Allocation) -> dict[str, Any]:
    task = api(f"/v1/client/allocation/{alloc}/stats")["Tasks"].get("guest") or {}
    found = task.get("ResourceUsage", {})
    assert isinstance(found, dict)
    return found


@pytest.mark.vm
@pytest.mark.long
def test_allowed_properties_and_samples_are_the_kernels(jobs: Jobs) -> None:
    [alloc] = jobs.run(hcl("tuned", TUNED, memory=64, resources="cpu = 1000"))
    alloc.says("touched all")
    group = cgroup(alloc)
    assert int((group / "memory.low").read_text()) == 16 * MIB
    assert int((group / "memory.swap.max").read_text()) == 24 * MIB
    assert (group / "cpuset.mems").read_text().strip() == "0"
    assert (group / "cpu.max").read_text().split()[1] == "20000"
    assert (group / "io.weight").read_text().split()[:2] == ["default", "321"]
    assert Path(f"/proc/{unit_property(alloc.unit(), 'MainPID')}/oom_score_adj").read_text().strip() == "345"

    eventually(lambda: "Total Ticks" in usage(alloc).get("CpuStats", {}).get("Measured", ()), "two samples are taken")
    memory, cpu = usage(alloc)["MemoryStats"], usage(alloc)["CpuStats"]
    assert {"RSS", "Cache", "Swap", "Usage", "Max Usage", "Kernel Usage"} == set(memory["Measured"])
    assert 16 * MIB <= memory["Usage"] <= memory["MaxUsage"] <= 64 * MIB
    assert {"System Mode", "User Mode", "Percent", "Total Ticks"} <= set(cpu["Measured"])
    shown = ok("nomad", "alloc", "status", "-stats", alloc)
    assert "Memory Stats" in shown
    assert "CPU Stats" in shown
