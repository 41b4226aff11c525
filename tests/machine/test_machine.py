"""The machine itself: what every other machine test takes for granted."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

CONFINED = (
    "DevicePolicy=closed",
    "DeviceAllow=/dev/null rw",
    "SystemCallArchitectures=native",
    "SystemCallFilter=@system-service",
    "ProtectSystem=strict",
    "PrivateTmp=yes",
    "NoNewPrivileges=yes",
    "CapabilityBoundingSet=",
    "User=nobody",
    "TemporaryFileSystem=/srv:ro",
)


def sh(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)


def ok(command: str) -> str:
    done = sh(command)
    assert done.returncode == 0, f"{command} → {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def confined(command: str, *properties: str) -> subprocess.CompletedProcess[str]:
    settings = [f"--property={setting}" for setting in (*CONFINED, *properties)]
    return subprocess.run(
        ["systemd-run", "--quiet", "--wait", "--pipe", "--collect", *settings, "--", "sh", "-c", command],
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.fixture
def sleeper() -> Iterator[Path]:
    ok("systemd-run --quiet --unit=machine-sleeper --property=MemoryMax=64M --property=TasksMax=8 sleep infinity")
    yield Path("/sys/fs/cgroup/system.slice/machine-sleeper.service")
    ok("systemctl stop machine-sleeper.service")


def test_the_system_is_up_and_nothing_failed() -> None:
    assert ok("systemctl is-system-running").strip() == "running"
    assert ok("systemctl --failed --no-legend") == ""


def test_the_hierarchy_is_unified() -> None:
    assert ok("stat --file-system --format=%T /sys/fs/cgroup").strip() == "cgroup2fs"


@pytest.mark.vm
def test_all_controllers_are_there() -> None:
    controllers = Path("/sys/fs/cgroup/cgroup.controllers").read_text().split()
    assert {"cpu", "cpuset", "io", "memory", "pids"} <= set(controllers)


@pytest.mark.vm
def test_hardware_tenders_find_a_kvm() -> None:
    assert Path("/dev/kvm").is_char_device()


def test_a_unit_freezes_and_thaws(sleeper: Path) -> None:
    ok("systemctl freeze machine-sleeper.service")
    assert "frozen 1" in (sleeper / "cgroup.events").read_text()
    ok("systemctl thaw machine-sleeper.service")
    assert "frozen 0" in (sleeper / "cgroup.events").read_text()


@pytest.mark.everywhere
def test_limits_reach_the_kernel_where_the_controllers_are(sleeper: Path) -> None:
    has = {name: (sleeper / name).exists() for name in ("memory.max", "pids.max")}
    controllers = Path("/sys/fs/cgroup/cgroup.controllers").read_text().split()
    assert has == {"memory.max": "memory" in controllers, "pids.max": "pids" in controllers}
    if has["memory.max"]:
        assert (sleeper / "memory.max").read_text() == f"{64 << 20}\n"


def test_confinement_takes_effect() -> None:
    done = confined("id -un; touch /usr/x; ls -A /srv; head -c0 /dev/net/tun; head -c0 /dev/null && echo null")
    assert done.stdout.split() == ["nobody", "null"]
    assert "Read-only file system" in done.stderr
    assert "/dev/net/tun' for reading: Operation not permitted" in done.stderr


def test_a_forbidden_system_call_ends_the_process() -> None:
    assert confined("unshare --user true", "SystemCallFilter=~unshare").returncode == 128 + 31


def test_taps_bridges_nftables_and_namespaces_work() -> None:
    ok("ip netns add aside && ip link add bridge0 type bridge && ip tuntap add tap0 mode tap")
    ok("ip link set tap0 master bridge0 && ip link add cable0 type veth peer name cable1 netns aside")
    ok("nft add table bridge machine && nft 'add chain bridge machine in { type filter hook input priority 0; }'")
    ok("nft add table ip machine && nft 'add chain ip machine out { type nat hook postrouting priority 100; }'")
    ok("nft add rule ip machine out masquerade")
    ok("nft delete table bridge machine && nft delete table ip machine")
    ok("ip link del cable0 && ip link del tap0 && ip link del bridge0 && ip netns del aside")


def test_nothing_leads_outside() -> None:
    assert [line.split()[0] for line in ok("ip -brief link").splitlines()] == ["lo"]
    assert ok("ip route") == ""
