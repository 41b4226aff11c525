"""Disks: written to the file, written by one task at a time."""

import re
from pathlib import Path

import pytest

from .conftest import GUESTS, Machine, Runner, console, inspect, ok, says, sh


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return made(tmp_path / "a disk with blanks.img")


def made(path: Path, size: int = 64 << 10) -> Path:
    path.write_bytes(bytes(size))
    ok("chown", "solo5:", str(path))
    return path


@pytest.mark.parametrize("target", ["hvt", "spt"])
def test_what_a_guest_writes_is_in_the_file(run: Runner, disk: Path, target: str) -> None:
    name = run(f"disk.{target}", "sector=3", "write=kept", "read", options=("--block", f"storage={disk}"))
    ok("solo5ctl", "wait", name)
    assert "sector 3: 'kept'" in console(name)
    assert disk.owner().startswith("solo5-"), "the task's own user"
    ok("solo5ctl", "rm", name)
    assert disk.owner() == "solo5", "who stands for all tasks, and as whom none runs"
    assert not list(Path("/var/lib/solo5/users").iterdir())
    assert disk.read_bytes()[3 * 512 :].startswith(b"kept\0")


def test_sector_size(run: Runner, disk: Path) -> None:
    name = run("disk.spt", "sector=1", "write=far", options=("--block", f"storage={disk},sector-size=4096"))
    ok("solo5ctl", "wait", name)
    assert disk.read_bytes()[4096:].startswith(b"far\0")


def test_one_disk_has_one_task(run: Runner, disk: Path) -> None:
    first = run("netdisk.hvt", options=("--block", f"storage={disk}"))
    refused = run.fail("--block", f"storage={disk}", f"{GUESTS}/disk.spt", "read")
    assert refused.returncode == 125
    assert str(disk) in refused.stderr
    linked = disk.with_name("other-name")
    linked.hardlink_to(disk)
    assert run.fail("--block", f"storage={linked}", f"{GUESTS}/disk.spt", "read").returncode == 125, "by any name"
    ok("kill", "-KILL", str(inspect(first)["pid"]))
    ok("solo5ctl", "wait", first)
    done = run.fail("--rm", "--block", f"storage={disk}", f"{GUESTS}/disk.spt", "read")
    assert done.returncode == 0, f"free as soon as its tender is dead: {done.stderr}"


def test_63_disks(machine: Machine, run: Runner, tmp_path: Path) -> None:
    options: list[str] = []
    for i in range(63):
        path = made(tmp_path / f"{i}.img", 4096)
        path.write_bytes(f"disk {i}".encode().ljust(4096, b"\0"))
        options += ["--block", f"storage{i}={path}"]
    name = run("disks63.spt", options=tuple(options))
    ok("solo5ctl", "wait", name)
    assert len(re.findall(r"storage(\d+): 'disk \1'", console(name))) == 63


@pytest.mark.vm  # a container has no loop devices of its own
def test_loop_device_as_a_disk(run: Runner, disk: Path) -> None:
    device = ok("losetup", "--find", "--show", str(disk)).strip()
    try:
        ok("chown", "solo5:", device)
        name = run("disk.hvt", "write=looped", options=("--block", f"storage={device}"))
        ok("solo5ctl", "wait", name)
        ok("blockdev", "--flushbufs", device)
        assert disk.read_bytes().startswith(b"looped\0")
    finally:
        sh("losetup", "--detach", device)


def test_other_files_of_the_directory_are_out_of_reach(run: Runner, disk: Path) -> None:
    made(disk.with_name("neighbour.img"))
    name = run("netdisk.spt", options=("--block", f"storage={disk}"))
    says(name, "sector 0")
    root = Path(f"/proc/{inspect(name)['pid']}/root")
    assert [p.name for p in (root / "run/solo5-disks").iterdir()] == ["storage"]
    assert not (root / str(disk.parent).lstrip("/")).exists()
    assert not (root / "tmp").exists()
