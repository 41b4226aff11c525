"""CSI volumes as disks, of a plugin that the agent runs: as a file system, and (in the virtual machine) as a device."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.machine.conftest import Machine, eventually, inspect, ok, sh, unit_property
from tests.machine.nomad.agent import USUAL, Agent, api
from tests.machine.nomad.csi import DIRECTORY, PUBLISHED, SPECIFICATION, is_healthy, plugin_job, volume
from tests.machine.nomad.jobs import Jobs, ended, hcl, running
from tests.machine.nomad.test_volumes import MOUNT, completed, disk

from solo5_systemd.settings.solo5_toml import TASK_UIDS


def job(name: str, config: str, mode: str = "file-system", *, kind: str = "batch", options: str = "") -> str:
    return hcl(name, config, kind=kind, group=volume(mode, options), task=MOUNT)


def published() -> list[str]:
    """Return the mount points of published volumes."""
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return [point for point in (line.split()[4] for line in mounts) if point.startswith(f"{PUBLISHED}/per-alloc/")]


def free() -> bool:
    """Return whether no allocation has the volume."""
    return not api("/v1/volume/csi/data")["WriteAllocs"] and not published()


def let_go() -> None:
    """Stop all jobs but the plugin's, and wait until the volume is free."""
    for name in {each["ID"] for each in api("/v1/jobs")} - {"csi"}:
        api(f"/v1/job/{name}", "DELETE")
    eventually(free, "the volume is free")


@pytest.fixture(scope="module")
def plugin(installed: Agent) -> Iterator[str]:
    """Run the plugin for all tests of this module, since Nomad takes 16 s to find it healthy; yield its allocation."""
    installed.use(USUAL)
    jobs = Jobs()
    [alloc] = jobs.run(plugin_job())
    eventually(is_healthy, "the plugin is healthy")
    yield alloc
    jobs.purge()


@contextmanager
def created(mode: str) -> Iterator[None]:
    """The volume `data`; deleted when all jobs but the plugin's are stopped."""
    path = Path("/tmp/csi.hcl")
    path.write_text(SPECIFICATION.format(name="data", mode=mode))
    assert "Created external volume" in ok("nomad", "volume", "create", str(path))
    yield
    let_go()
    ok("nomad", "volume", "delete", "data")


@pytest.fixture
def files(plugin: str, jobs: Jobs) -> Iterator[Jobs]:
    """The volume `data`, as a file system."""
    with created("file-system"):
        yield jobs


@pytest.fixture
def block_device(plugin: str, jobs: Jobs) -> Iterator[Jobs]:
    with created("block-device"):
        yield jobs


def test_file_system_outlives_its_jobs(files: Jobs) -> None:
    files.submit(job("first", disk("write=kept", "read", block='create = true\nsize = "64K"')))
    completed("first", "sector 0: 'kept'")
    eventually(free, "the volume is free")
    files.submit(job("second", disk("read")))
    completed("second", "sector 0: 'kept'")
    assert not list(Path("/var/lib/solo5/users").iterdir())


def test_guest_keeps_its_disk_when_the_volume_is_detached_under_it(files: Jobs, machine: Machine) -> None:
    """Its user is kept until the next allocation has the volume, and gets the disk."""
    machine.expect("cannot be reclaimed from user .*: its file system is not mounted")
    [alloc] = files.run(
        job("user", disk("write=kept", "read", "stay", block='create = true\nsize = "64K"'), kind="service")
    )
    alloc.says("sector 0: 'kept'")
    [point] = published()
    ok("umount", "--lazy", point)
    root = Path(f"/proc/{inspect(alloc.name())['pid']}/root")
    assert (root / "run/solo5-disks/storage").read_bytes().startswith(b"kept\0"), "the unit has a mount of its own"
    ok("nomad", "alloc", "restart", alloc, "guest")
    assert ended("user") == alloc
    assert f"volume data is not mounted at {point}: expected a CSI volume" in alloc.refusal()
    assert not Path(point, "disk.img").exists(), "no blank disk is created on the node's own file system"
    let_go()
    [kept] = Path("/var/lib/solo5/users").iterdir()
    assert "taken back" in ok("getent", "passwd", kept.name)
    files.submit(job("second", disk("read")))
    completed("second", "sector 0: 'kept'")
    eventually(lambda: not list(Path("/var/lib/solo5/users").iterdir()), "no user is kept")


def test_user_of_a_disk_that_was_detached_while_the_driver_was_dead(
    agent: Agent, files: Jobs, machine: Machine
) -> None:
    """It is kept as long as it owns the file; the agent mounts the volume again, or the next allocation does."""
    machine.expect("cannot be reclaimed from user .*: its file system is not mounted|failed to reattach to plugin")
    [alloc] = files.run(job("user", disk("write=kept", "stay", block='create = true\nsize = "64K"'), kind="service"))
    alloc.says("storage")
    name = alloc.unit()
    uid = int(unit_property(name, "User"))
    agent.kill_with_plugin()
    ok("systemctl", "kill", "--signal=KILL", name)
    [point] = published()
    ok("umount", point)
    [image] = DIRECTORY.glob("*/data/disk.img")
    assert image.stat().st_uid == uid
    agent.start()

    def is_owner_known() -> bool:
        owner = str(image.stat().st_uid)
        return sh("getent", "passwd", owner).returncode == 0 or str(image.stat().st_uid) != owner

    def is_reclaimed() -> bool:
        assert is_owner_known(), "no user is free that owns a disk"
        return image.owner() == "root"

    ended("user")
    let_go()
    files.submit(job("second", disk("read")))
    completed("second", "sector 0: 'kept'")
    eventually(is_reclaimed, "the disk is reclaimed")
    eventually(lambda: sh("getent", "passwd", str(uid)).returncode == 2, "the user is free")
    assert not list(Path("/var/lib/solo5/users").iterdir())


def test_drain_detaches_the_volume(agent: Agent, files: Jobs) -> None:
    [alloc] = files.run(job("user", disk("write=kept", "stay", block='create = true\nsize = "64K"'), kind="service"))
    try:
        ok("nomad", "node", "drain", "-enable", "-ignore-system", "-deadline", "1m", "-yes", agent.node)
        eventually(lambda: alloc.about()["ClientStatus"] == "complete", "the guest is stopped")
        eventually(lambda: not published(), "the volume is detached")
    finally:
        ok("nomad", "node", "drain", "-disable", "-yes", agent.node)
    running("user")


@pytest.mark.vm
@pytest.mark.long
def test_block_device_is_the_disk(block_device: Jobs) -> None:
    """It outlives its jobs."""
    block_device.submit(job("first", disk("sector=7", "write=kept", "read"), "block-device"))
    completed("first", "sector 7: 'kept'")
    eventually(free, "the volume is free")
    block_device.submit(job("second", disk("sector=7", "read"), "block-device"))
    completed("second", "sector 7: 'kept'")
    eventually(free, "the volume is free")
    let_go()
    assert not sh("losetup", "--noheadings", "--output=NAME").stdout.split()
    eventually(lambda: not list(Path("/var/lib/solo5/users").iterdir()), "no user is kept")
    assert {path.stat().st_uid for path in Path("/dev").glob("loop[0-9]*")}.isdisjoint(TASK_UIDS), "nor owns a device"
