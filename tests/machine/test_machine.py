"""The machine itself: what every other machine test takes for granted."""

from pathlib import Path

import pytest
from tests.machine.conftest import ok


def test_the_system_is_up_and_nothing_failed() -> None:
    assert ok("systemctl", "is-system-running").strip() == "running"
    assert ok("systemctl", "--failed", "--no-legend") == ""


def test_the_hierarchy_is_unified() -> None:
    assert ok("stat", "--file-system", "--format=%T", "/sys/fs/cgroup").strip() == "cgroup2fs"


@pytest.mark.vm
def test_all_controllers_are_there() -> None:
    controllers = Path("/sys/fs/cgroup/cgroup.controllers").read_text().split()
    assert {"cpu", "cpuset", "io", "memory", "pids"} <= set(controllers)


@pytest.mark.vm
def test_hardware_tenders_find_a_kvm() -> None:
    assert Path("/dev/kvm").is_char_device()


@pytest.mark.everywhere
def test_limits_reach_the_kernel_where_the_controllers_are() -> None:
    limits = ("--property=MemoryMax=64M", "--property=TasksMax=8")
    ok("systemd-run", "--quiet", "--unit=machine-sleeper", *limits, "sleep", "infinity")
    group = Path("/sys/fs/cgroup/system.slice/machine-sleeper.service")
    has = {name: (group / name).exists() for name in ("memory.max", "pids.max")}
    controllers = Path("/sys/fs/cgroup/cgroup.controllers").read_text().split()
    assert has == {"memory.max": "memory" in controllers, "pids.max": "pids" in controllers}
    if has["memory.max"]:
        assert (group / "memory.max").read_text() == f"{64 << 20}\n"
    ok("systemctl", "stop", "machine-sleeper.service")


def test_nothing_leads_outside() -> None:
    assert [line.split()[0] for line in ok("ip", "-brief", "link").splitlines()] == ["lo"]
    assert ok("ip", "route") == ""
