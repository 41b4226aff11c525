"""Unit properties that an operator may allow, and resource usage, in the kernel's cgroup v2 controllers."""

from pathlib import Path
from typing import Any

import pytest
from tests.machine.conftest import GUESTS, eventually, ok, unit_property
from tests.machine.nomad.agent import api
from tests.machine.nomad.jobs import Jobs, hcl, says, unit

pytestmark = [pytest.mark.vm, pytest.mark.long]  # an emulated machine takes three minutes to start the agent
MIB = 1 << 20
CONFIG = f"""
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


def usage(alloc: str) -> dict[str, Any]:
    task = api(f"/v1/client/allocation/{alloc}/stats")["Tasks"].get("guest") or {}
    found = task.get("ResourceUsage", {})
    assert isinstance(found, dict)
    return found


def test_allowed_properties_and_samples_are_the_kernels(jobs: Jobs) -> None:
    [alloc] = jobs.run(hcl("tuned", CONFIG, memory=64, resources="cpu = 1000"))
    says(alloc, "touched all")
    service = unit(alloc)
    group = Path("/sys/fs/cgroup" + unit_property(service, "ControlGroup"))
    assert int((group / "memory.low").read_text()) == 16 * MIB
    assert int((group / "memory.swap.max").read_text()) == 24 * MIB
    assert (group / "cpuset.mems").read_text().strip() == "0"
    assert (group / "cpu.max").read_text().split()[1] == "20000"
    assert (group / "io.weight").read_text().split()[:2] == ["default", "321"]
    assert Path(f"/proc/{unit_property(service, 'MainPID')}/oom_score_adj").read_text().strip() == "345"

    eventually(lambda: "Total Ticks" in usage(alloc).get("CpuStats", {}).get("Measured", ()), "two samples are taken")
    memory, cpu = usage(alloc)["MemoryStats"], usage(alloc)["CpuStats"]
    assert {"RSS", "Cache", "Swap", "Usage", "Max Usage", "Kernel Usage"} == set(memory["Measured"])
    assert 16 * MIB <= memory["Usage"] <= memory["MaxUsage"] <= 64 * MIB
    assert {"System Mode", "User Mode", "Percent", "Total Ticks"} <= set(cpu["Measured"])
    shown = ok("nomad", "alloc", "status", "-stats", alloc)
    assert "Memory Stats" in shown
    assert "CPU Stats" in shown
