"""Host volumes of a node and dynamic host volumes of `solo5-disk` as disks, under a real agent."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from tests.machine.conftest import GUESTS, Machine, eventually, inspect, ok, sh
from tests.machine.nomad.agent import DATA, USUAL, VOLUMES, Agent, api
from tests.machine.nomad.jobs import (
    NEVER_AGAIN,
    SCOPE,
    SERVICE,
    Allocation,
    Jobs,
    ended,
    group_hcl,
    guest,
    hcl,
    running,
    task_hcl,
)
from tests.machine.nomad.test_examples import EXAMPLES, completes, submit
from tests.machine.test_joined import SETTINGS

STATIC = VOLUMES / "static"
RECORDS = Path("/var/lib/solo5/volumes")
MOUNT = 'volume_mount {\n  volume = "data"\n  destination = "data"\n}\n'


def volume(source: str = "static", name: str = "data", options: str = "") -> str:
    """Return a group's request for a host volume."""
    return f'volume "{name}" {{\n  type = "host"\n  source = "{source}"\n  {options}\n}}\n{NEVER_AGAIN}'


def disk(*words: str, block: str = "", image: str = "disk.hvt", name: str = "data") -> str:
    """Return the config of a task whose guest has the volume as its disk."""
    return guest(image, *words, more=f'block "storage" {{\n  volume = "{name}"\n  {block}\n}}\n')


def job(name: str, config: str, group: str = "", *, kind: str = "batch", mount: str = MOUNT) -> str:
    return hcl(name, config, kind=kind, group=group or volume(), task=mount)


def completed(name: str, text: str) -> Allocation:
    alloc = ended(name)
    assert alloc.about()["ClientStatus"] == "complete", alloc.status()
    alloc.says(text)
    return alloc


def refused(name: str, words: str) -> Allocation:
    """Wait until a job's task has failed, and compare what `nomad alloc status` shows."""
    alloc = ended(name)
    shown = alloc.refusal()
    assert words in shown, shown
    return alloc


@pytest.fixture
def static(agent: Agent) -> Iterator[Path]:
    yield STATIC
    for path in STATIC.iterdir():
        path.unlink()


@pytest.mark.parametrize("kind", [SERVICE, SCOPE], ids=["service", "scope"])
def test_file_in_a_host_volume_is_created_once_and_kept(jobs: Jobs, static: Path, kind: str) -> None:
    jobs.submit(job("first", disk("sector=3", "write=kept", "read", block='create = true\nsize = "64K"') + kind))
    completed("first", "sector 3: 'kept'")
    eventually(lambda: (static / "disk.img").owner() == "root", "it is reclaimed from the task's user")
    assert (static / "disk.img").stat().st_size == 64 << 10
    jobs.submit(job("second", disk("sector=3", "read", block='create = true\nsize = "1M"') + kind))
    completed("second", "sector 3: 'kept'")
    assert (static / "disk.img").stat().st_size == 64 << 10, "it exists: size is not that of a resize"


def test_read_only_volume_is_the_source_of_a_copy(jobs: Jobs, static: Path) -> None:
    (static / "disk.img").write_bytes(b"original".ljust(4096, b"\0"))
    config = disk("read", "write=changed", "read", block="read_only = true")
    jobs.submit(job("copy", config, volume("reading", options="read_only = true")))
    completed("copy", "sector 0: 'changed'")
    assert (static / "disk.img").read_bytes().startswith(b"original\0")
    assert (static / "disk.img").owner() == "root"


def test_one_disk_has_one_writer(jobs: Jobs, static: Path) -> None:
    """Of two jobs, and of solo5ctl."""
    jobs.run(job("first", disk("stay", block='create = true\nsize = "64K"'), kind="service"))
    jobs.submit(job("second", disk("read")))
    refused("second", "is in use by another task.")
    path = static / "disk.img"
    by_hand = sh("solo5ctl", "run", "--rm", "--block", f"storage={path}", f"{GUESTS}/disk.spt", "read")
    assert by_hand.returncode == 125
    assert "is in use by another task" in by_hand.stderr


def of_another_user(path: Path, victim: Path) -> None:
    path.write_bytes(bytes(4096))
    path.chmod(0o666)
    os.chown(path, 65534, 65534)


def moved(path: Path, victim: Path) -> None:
    """A disk at rest, with the title of a job."""
    path.write_bytes(bytes(4096))
    os.setxattr(path, "trusted.solo5.disk", f"{path.stat().st_ino} job default/other".encode())


PLANTED: dict[str, tuple[Callable[[Path, Path], None], str]] = {
    "symbolic": (lambda path, victim: path.symlink_to(victim), "cannot be used: expected a file below"),
    "dangling": (
        lambda path, victim: path.symlink_to(victim.with_name("created")),
        "cannot be used: expected a file below",
    ),
    "hard": (lambda path, victim: path.hardlink_to(victim), "has 2 names"),
    "fifo": (lambda path, victim: os.mkfifo(path), "is no disk: expected a regular file or a block device"),
    # A device node of the victim's file system, as a container with CAP_MKNOD can create it in its volume.
    "device": (
        lambda path, victim: os.mknod(path, 0o060666, victim.stat().st_dev),
        "is a block device in a directory of the allocation or of a volume",
    ),
    "moved": (moved, "is a disk of another job, which was moved"),
    "foreign": (of_another_user, "belongs to user 65534"),
}


def test_file_that_another_user_of_the_volume_has_planted_is_not_used(jobs: Jobs, static: Path) -> None:
    victim = VOLUMES / "victim.img"
    victim.write_bytes(b"secret".ljust(4096, b"\0"))
    victim.chmod(0o600)
    before = victim.stat()
    try:
        for name, (plant, _) in PLANTED.items():
            plant(static / name, victim)
            jobs.submit(job(name, disk("write=x", "read", block=f'file = "{name}"\ncreate = true\nsize = "64K"')))
        for name, (_, words) in PLANTED.items():
            refused(name, words)
        now = victim.stat()
        assert (now.st_uid, now.st_mode, victim.read_bytes()[:7]) == (before.st_uid, before.st_mode, b"secret\0")
        assert not (VOLUMES / "created").exists()
    finally:
        victim.unlink()


def test_no_disk_is_created_while_the_volumes_file_system_is_not_mounted(
    jobs: Jobs, static: Path, tmp_path: Path
) -> None:
    config = disk("write=kept", block='create = true\nsize = "64K"')
    ok("mount", "--bind", str(tmp_path), str(STATIC))
    try:
        jobs.submit(job("mounted", config))
        assert ended("mounted").about()["ClientStatus"] == "complete"
    finally:
        ok("umount", str(STATIC))
    jobs.submit(job("unmounted", config))
    refused("unmounted", f"nothing is mounted at '{STATIC}': expected the file system that was mounted there")
    assert not list(STATIC.iterdir())
    assert (tmp_path / "disk.img").read_bytes().startswith(b"kept\0")


def test_a_volume_is_found_by_its_destination_which_need_not_be_its_name(jobs: Jobs, static: Path) -> None:
    """The Nomad of these tests passes no name, and Nomad 2 that of the source."""

    def job_of(name: str, word: str) -> str:
        elsewhere = MOUNT.replace('destination = "data"', 'destination = "/srv/elsewhere"')
        return job(name, disk("write=found", "read", block='create = true\nsize = "64K"', name=word), mount=elsewhere)

    jobs.submit(job_of("by-destination", "srv/elsewhere"))
    completed("by-destination", "sector 0: 'found'")
    jobs.submit(job_of("by-name", "data"))
    shown = refused("by-name", "expected the volume or the destination of one volume_mount of the task").refusal()
    assert "Give each volume_mount the name of its volume as its destination." in shown


def test_a_guest_that_continues_after_an_error_of_its_full_disk(machine: Machine, jobs: Jobs, static: Path) -> None:
    """An event names the disk, and so do metrics and `inspect`, until there is space again, which is an event, too."""
    machine.expect("No space is left in the file system of disk storage")
    ok("mount", "-t", "tmpfs", "-o", "size=64k", "full", str(STATIC))
    try:
        (static / "fill").write_bytes(bytes(64 << 10))
        words = ("sector=1000", "try=x", "stay")
        config = disk(*words, image="disk.spt", block='create = true\nsize = "1M"')
        [alloc] = jobs.run(job("full", config, kind="service"))
        alloc.says("sector 1000: not written")
        alloc.happens(f"No space is left in the file system of disk storage ({static}/disk.img)")
        name = alloc.name()
        assert f'solo5_task_disk_full{{task="{name}",disk="storage"}} 1' in ok("solo5ctl", "metrics")
        [shown] = inspect(name)["disks"]
        assert shown["full"] is True
        assert "no space is left in its file system" in ok("solo5ctl", "inspect", name)
        (static / "fill").unlink()
        alloc.happens(f"Space is left again in the file system of disk storage ({static}/disk.img)")
        assert "solo5_task_disk_full" not in ok("solo5ctl", "metrics")
        assert [each.partition(":")[2].count("No space is left") for each in alloc.events()].count(1) == 1, "once"
        assert alloc.about()["ClientStatus"] == "running"
        jobs.purge()
    finally:
        ok("umount", "--lazy", str(STATIC))


# --- solo5-disk --------------------------------------------------------------------------------------------------


def create(name: str, *lines: str, check: bool = True, plugin: str = "solo5-disk") -> CompletedProcess[str]:
    """Run `nomad volume create` for a host volume of a plugin, on this node.

    Without `node_id` Nomad takes any node with the plugin that its server knows: also one that has gone.
    """
    node = api("/v1/agent/self")["stats"]["client"]["node_id"]
    spec = "\n".join((f'name = "{name}"', 'type = "host"', f'plugin_id = "{plugin}"', f'node_id = "{node}"', *lines))
    capability = 'capability {\n  access_mode = "single-node-writer"\n  attachment_mode = "file-system"\n}\n'
    path = Path("/tmp/volume.hcl")
    path.write_text(f"{spec}\n{capability}")
    done = sh("nomad", "volume", "create", str(path))
    assert not check or done.returncode == 0, done.stderr
    return done


def identifier(name: str) -> str:
    return next((str(each["ID"]) for each in api("/v1/volumes?type=host") if each["Name"] == name), "")


def delete(name: str) -> CompletedProcess[str]:
    return sh("nomad", "volume", "delete", "-type", "host", identifier(name))


@pytest.fixture
def volumes(agent: Agent, jobs: Jobs) -> Iterator[Path]:
    """Yield the directory of dynamic host volumes; afterwards there is none."""
    attributes = agent.about()["Attributes"]
    assert attributes["plugins.host_volume.solo5-disk.version"] == "1.0.0"
    yield DATA / "host_volumes"
    jobs.purge()
    for each in api("/v1/volumes?type=host"):
        eventually(lambda name=each["Name"]: delete(name).returncode == 0, "it is deleted")  # type: ignore[misc]
    assert not list((DATA / "host_volumes").glob("*"))
    assert not list(RECORDS.glob("*"))


def test_volume_outlives_its_jobs(jobs: Jobs, volumes: Path) -> None:
    """The commands and files of docs/nomad-disks.md."""
    output = ok("nomad", "volume", "create", str(EXAMPLES / "volumes/data.volume.hcl"))
    assert "Created host volume data" in output, output
    image = volumes / identifier("data") / "disk.img"
    assert (image.stat().st_size, image.stat().st_blocks) == (64 << 20, 0)
    assert "64 MiB" in ok("nomad", "volume", "status", "-type", "host", identifier("data"))
    submit(jobs, "volume", "volume")
    completes("volume", "sector 0: ''")
    jobs.purge()
    submit(jobs, "volume", "volume")
    completes("volume", "sector 0: 'kept-on-data'")


def test_volume_of_nomads_own_plugin_has_the_disks_that_jobs_create(jobs: Jobs, volumes: Path) -> None:
    """`mkdir` makes a directory: the disk is a file of the job's."""
    create("plain", plugin="mkdir")
    directory = volumes / identifier("plain")
    jobs.submit(job("none", disk("read"), volume("plain")))
    refused("none", f"{directory}/disk.img")
    jobs.submit(
        job("first", disk("write=kept", block='create = true\nsize = "64K"'), volume("plain", options="sticky = true"))
    )
    completed("first", "capacity 65536 bytes")
    jobs.submit(job("second", disk("read"), volume("plain")))
    completed("second", "sector 0: 'kept'")
    assert (directory / "disk.img").stat().st_size == 64 << 10


def test_volume_in_use_is_not_deleted(jobs: Jobs, volumes: Path) -> None:
    create("data", 'capacity_max = "1MiB"')
    image = volumes / identifier("data") / "disk.img"
    jobs.run(job("user", disk("write=kept", "stay"), volume("data"), kind="service"))
    by_nomad = delete("data")
    assert by_nomad.returncode == 1
    assert "volume" in by_nomad.stderr
    assert "in use" in by_nomad.stderr
    jobs.purge()
    ok("solo5ctl", "run", "--detach", "--name", "by-hand", "--block", f"storage={image}", f"{GUESTS}/disk.spt", "stay")
    try:
        by_plugin = delete("data")
        assert by_plugin.returncode == 1
        assert f"volume data: '{image}' is in use by another task" in by_plugin.stderr
        assert image.exists()
    finally:
        ok("solo5ctl", "rm", "--force", "by-hand")
    assert image.read_bytes().startswith(b"kept\0")


def test_volume_is_there_again_after_a_restart_of_the_agent(agent: Agent, jobs: Jobs, volumes: Path) -> None:
    """Also beyond the quota; and not, as a blank disk, while its file system is not mounted."""
    create("data", 'capacity_max = "1MiB"')
    path = volumes / identifier("data")
    alloc = jobs.run(job("user", disk("write=kept", "stay"), volume("data"), kind="service"))[0]
    pid = inspect(alloc.name())["pid"]
    SETTINGS.write_text(f'disk_quota_mb = {{ "{volumes}" = 0 }}\n')
    try:
        agent.restart(USUAL)
        eventually(lambda: "data" in agent.about()["HostVolumes"], "the node has the volume")
    finally:
        SETTINGS.unlink()
    assert inspect(alloc.name())["pid"] == pid, "the guest has not noticed"
    jobs.purge()
    agent.stop()
    away = path.with_name("away")
    path.rename(away)
    agent.start()
    eventually(lambda: "data" not in agent.about()["HostVolumes"], "the node does not offer it")
    assert "volume data has lost its disk image" in agent.log()
    assert not path.exists()
    away.rename(path)
    agent.stop()
    agent.start()
    eventually(lambda: "data" in agent.about()["HostVolumes"], "the node has the volume")
    assert (path / "disk.img").read_bytes().startswith(b"kept\0")


def test_drain_of_the_node_stops_the_guest_and_keeps_the_volume(agent: Agent, jobs: Jobs, volumes: Path) -> None:
    create("data", 'capacity_max = "1MiB"')
    image = volumes / identifier("data") / "disk.img"
    alloc = jobs.run(job("user", disk("write=kept", "stay"), volume("data"), kind="service"))[0]
    alloc.says("storage")
    try:
        ok("nomad", "node", "drain", "-enable", "-deadline", "1m", "-yes", agent.node)
        eventually(lambda: alloc.about()["ClientStatus"] == "complete", "the guest is stopped")
    finally:
        ok("nomad", "node", "drain", "-disable", "-yes", agent.node)
    running("user")
    assert image.read_bytes().startswith(b"kept\0")


def test_volume_grows_and_does_not_shrink(jobs: Jobs, volumes: Path) -> None:
    create("data", 'capacity_max = "1MiB"')
    number = identifier("data")
    image = volumes / number / "disk.img"
    create("data", f'id = "{number}"', 'capacity_min = "2MiB"', 'capacity_max = "2MiB"')
    assert image.stat().st_size == 2 << 20
    done = create("data", f'id = "{number}"', 'capacity_max = "1MiB"', check=False)
    assert "cannot be less than existing provisioned capacity" in done.stderr
    jobs.submit(job("user", disk("sector=3000", "write=far", "read"), volume("data")))
    completed("user", "sector 3000: 'far'")


def test_tasks_of_a_group_have_a_volume_together(jobs: Jobs, static: Path) -> None:
    """A task of another driver beside the guest that needs no mount, and a second guest with a file of its own."""
    one = task_hcl("one", disk("write=one", "read", block='file = "one.img"\ncreate = true\nsize = "64K"'), task=MOUNT)
    two = task_hcl("two", disk("write=two", "read", block='file = "two.img"\ncreate = true\nsize = "64K"'), task=MOUNT)
    beside = task_hcl("beside", 'command = "/bin/true"', driver="raw_exec")
    jobs.submit(group_hcl("together", one, two, beside, kind="batch", group=volume()))
    alloc = ended("together")
    assert alloc.about()["ClientStatus"] == "complete", alloc.status()
    for name in ("one", "two"):
        alloc.says(f"sector 0: '{name}'", name=name)
