"""Disks from an allocation's files: usable as they are, and no access to any other file."""

import hashlib
import json
import os
import pwd
import secrets
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.machine.conftest import GUESTS, NOBODY, eventually, inspect, ok, sh, unit_property
from tests.machine.nomad.agent import DATA, USUAL, Agent, api
from tests.machine.nomad.jobs import (
    SCOPE,
    SERVICE,
    Allocation,
    Jobs,
    allocations,
    block,
    ended,
    guest,
    hcl,
    newest,
    running,
)
from tests.machine.test_archives import everywhere


def artifact(web: str, destination: str) -> str:
    return block("artifact", source=f"{web}/blank.img", destination=destination, mode="file")


def config(source: str, *words: str, image: str = "disk.hvt") -> str:
    return guest(image, *words, more=block("block", "storage", source=source))


SECRET = block("template", destination="secrets/disk.img", data="x" * 512)
"""A sector, in a file system of the task's own."""


@pytest.fixture
def blank(web: str) -> Iterator[str]:
    """Serve `blank.img`, a file of 64 KiB, by HTTP."""
    path = GUESTS / "blank.img"
    path.write_bytes(bytes(64 << 10))
    yield web
    path.unlink()


@pytest.mark.parametrize("kind", [SERVICE, SCOPE], ids=["service", "scope"])
def test_artifact_is_a_disk(jobs: Jobs, blank: str, kind: str) -> None:
    """Nomad writes it as root, with mode 0644, below the task's directory or the directory that tasks share."""
    for job, source in {"own": "local/disk.img", "shared": "../alloc/disk.img"}.items():
        words = ("sector=3", "write=kept", "read")
        jobs.submit(hcl(job, config(source, *words) + kind, kind="batch", task=artifact(blank, source)))
    jobs.submit(hcl("secret", config("secrets/disk.img", "write=kept", "read") + kind, kind="batch", task=SECRET))
    places = {"own": "guest/local/disk.img", "secret": "guest/secrets/disk.img", "shared": "alloc/disk.img"}
    for job, path in places.items():
        alloc = ended(job)
        assert alloc.about()["ClientStatus"] == "complete", alloc.status()
        sector = 0 if job == "secret" else 3
        alloc.says(f"sector {sector}: 'kept'")
        disk = alloc.file(path)
        assert disk.read_bytes()[sector * 512 :].startswith(b"kept\0")
        eventually(lambda disk=disk: disk.owner() == "root", "it is reclaimed from the task's user")  # type: ignore[misc]


@pytest.mark.parametrize("owner", [0, 777], ids=["root", "another nodes solo5"])
def test_sticky_disk_is_the_next_allocations(jobs: Jobs, blank: str, owner: int) -> None:
    """Data of the guest survives an update, until an artifact of the next allocation replaces the file.

    Numbers of users differ between nodes: a record of the job is on the file, and its owner is of no matter.
    """
    [first] = jobs.run(sticky(config("local/disk.img", "write=kept", "stay"), artifact(blank, "local/disk.img")))
    first.says("storage")
    disk = first.file("guest/local/disk.img")
    eventually(lambda: disk.read_bytes().startswith(b"kept\0"), "the guest has written")
    os.chown(disk, owner, owner)
    jobs.submit(sticky(config("local/disk.img", "read", "sector=2", "write=more", "stay")))
    eventually(lambda: len(allocations("sticky")) == 2, "an allocation more")
    running("sticky")
    newest("sticky").says("sector 0: 'kept'")
    jobs.submit(sticky(config("local/disk.img", "read", "stay"), artifact(blank, "local/disk.img")))
    eventually(lambda: len(allocations("sticky")) == 3, "the last allocation")
    running("sticky")
    newest("sticky").says("sector 0: ''")


def test_idle_disk_of_a_job_is_no_other_jobs(jobs: Jobs, blank: str) -> None:
    """Moved by a user like that of a raw_exec task: the directories of a task are writable for every user."""
    DATA.chmod(0o711)
    (DATA / "alloc").chmod(0o711)
    jobs.submit(hcl("owner", config("local/disk.img", "write=secret", "read"), task=artifact(blank, "local/disk.img")))
    source = ended("owner")
    idle = source.file("guest/local/disk.img")
    eventually(lambda: idle.owner() == "root", "it is reclaimed from the task's user")
    place = "../alloc/data/disk.img"
    [alloc] = jobs.run(hcl("thief", config(place, "read", "stay"), task=artifact(blank, place)))
    alloc.says("sector 0: ''")
    there = alloc.file("alloc/data/disk.img")
    as_nobody(f"mv {there} {there}.own; mv {idle} {there}")
    ok("nomad", "alloc", "restart", alloc, "guest")
    assert ended("thief") == alloc
    assert "is a disk of another job, which was moved" in alloc.refusal()
    assert there.owner() == "root"
    files = archived('"alloc/data"', "stay")
    [alloc] = jobs.run(hcl("reader", files, task=artifact(blank, "../alloc/data/own")))
    moved = alloc.file("alloc/data/disk.img")
    as_nobody(f"mv {there} {moved}")
    ok("nomad", "alloc", "restart", alloc, "guest")
    assert ended("reader") == alloc
    assert "is a disk of another job or volume, which was moved" in alloc.refusal(), "nor is it read as a file"
    as_nobody(f"mv {moved} {there}")
    (DATA / "shared").mkdir(exist_ok=True)
    (DATA / "shared").chmod(0o1777)
    shared = DATA / "shared" / "disk.img"
    as_nobody(f"mv {there} {shared}")
    done = sh("solo5ctl", "run", "--block", f"storage={shared}", str(GUESTS / "disk.spt"), "read")
    assert "is a disk of another job, which was moved" in done.stderr
    assert shared.read_bytes().startswith(b"secret\0")
    shutil.rmtree(shared.parent)


def sticky(its_config: str, task: str = "") -> str:
    return hcl("sticky", its_config, task=task, ephemeral_disk="sticky = true")


@pytest.fixture
def victim() -> Iterator[Path]:
    """A file of another user, on the file system of the allocations."""
    path = DATA / "victim.img"
    path.write_bytes(b"secret".ljust(512, b"\0"))
    path.chmod(0o600)
    yield path
    path.unlink()


PLANTED: dict[str, tuple[Callable[[Path, Path], None], str]] = {
    "symbolic": (lambda disk, victim: disk.symlink_to(victim), "cannot be used: expected a file below"),
    "relative": (
        lambda disk, victim: disk.symlink_to("../" * (len(disk.parents) - 1) + str(victim)),
        "cannot be used: expected a file below",
    ),
    "hard": (lambda disk, victim: disk.hardlink_to(victim), "has 2 names"),
    # A device node of the victim's file system, as a container with CAP_MKNOD can create it.
    "device": (lambda disk, victim: os.mknod(disk, 0o060666, victim.stat().st_dev), "is a block device"),
}


def test_planted_file_is_not_taken(jobs: Jobs, blank: str, victim: Path) -> None:
    """Planted by a task that shares the allocation's directory, between two starts of a task whose disk was allowed."""
    before = victim.stat()
    source = "../alloc/disk.img"
    for job in PLANTED:
        jobs.submit(hcl(job, config(source, "read", "stay"), task=artifact(blank, source)))
    for job, (plant, words) in PLANTED.items():
        alloc = running(job)
        alloc.says("sector 0: ''")
        disk = alloc.file("alloc/disk.img")
        disk.unlink()
        plant(disk, victim)
        ok("nomad", "alloc", "restart", alloc, "guest")
        assert ended(job) == alloc
        assert words in alloc.refusal()
        disk.unlink()
    now = victim.stat()
    assert (now.st_uid, now.st_gid, now.st_mode) == (before.st_uid, before.st_gid, before.st_mode)
    assert victim.read_bytes().startswith(b"secret\0")


@pytest.fixture
def slow_network(agent: Agent) -> Iterator[Callable[[], None]]:
    """A network service that blocks until it is released: starts wait after the check of their disks."""
    ok("busctl", "call", "org.solo5.Network1", "/org/solo5/Network1", "org.freedesktop.DBus.Peer", "Ping")
    pid = int(unit_property("solo5-networkd.service", "MainPID"))
    os.kill(pid, signal.SIGSTOP)
    yield lambda: os.kill(pid, signal.SIGCONT)
    with suppress(ProcessLookupError):  # stopped for longer than its idle timeout, it has made room for a successor
        os.kill(pid, signal.SIGCONT)


def as_nobody(script: str) -> None:
    """Run a command as another user, like a raw_exec task, which may enter the agent's data_dir."""
    ok(*NOBODY, "sh", "-ec", script)


REPLACED = {"shared": ("../alloc/disk.img", "alloc", "disk.img"), "own": ("local/disk.img", "guest", "local")}


def test_disk_that_is_replaced_during_a_start_is_not_used(
    jobs: Jobs, blank: str, victim: Path, slow_network: Callable[[], None]
) -> None:
    """Replaced by a link to the disk of another allocation, which the user solo5 may write, by a user who is not root.

    Of a task's own directory it is `local` that is replaced, since Nomad makes that directory writable for every user.
    """
    os.chown(victim, pwd.getpwnam("solo5").pw_uid, -1)
    DATA.chmod(0o711)
    (DATA / "alloc").chmod(0o711)
    (DATA / "disk.img").hardlink_to(victim)
    for job, (source, _, _) in REPLACED.items():
        jobs.submit(hcl(job, config(source, "read", image="netdisk.hvt"), task=artifact(blank, source)))
    begun: dict[str, Allocation] = {}
    for job, (_, directory, entry) in REPLACED.items():
        eventually(lambda job=job: [a for a in allocations(job) if a["TaskStates"]], "it is begun")  # type: ignore[misc]
        begun[job] = newest(job)
        begun[job].happens("Preflight passed")
        target = victim if entry.endswith(".img") else DATA
        as_nobody(f"cd {begun[job].file(directory)}; mv {entry} gone; ln -s {target} {entry}")
    slow_network()
    for job, alloc in begun.items():
        assert ended(job) == alloc
        assert "was replaced during the start" in alloc.refusal()
    (DATA / "disk.img").unlink()
    assert not list(Path("/run/solo5/binds").iterdir())


NAMED = Path("/var/lib/solo5/disks")


@pytest.fixture
def no_disk(agent: Agent) -> Iterator[None]:
    """No named disk, once the jobs are over."""
    yield
    for path in NAMED.iterdir():
        path.unlink()


def named(disk: str, *words: str) -> str:
    return guest("disk.spt", *words, more=f'block "storage" {{\n{disk}\n}}\n')


@pytest.mark.usefixtures("no_disk")
def test_named_disks_are_those_that_the_operator_allows(jobs: Jobs) -> None:
    ok("solo5ctl", "disk", "create", "db-0", "1M")
    refused = {
        "other": ('disk = "db-0"', "named disk 'db-0' is not allowed on this node: expected one that matches web-*"),
        "copied": ('disk = "db-0"\nephemeral = true', "is not allowed on this node"),
        "missing": ('disk = "web-9"', "no disk is named 'web-9'"),
        "large": ('disk = "web-8"\ncreate = true\nsize = "1G"', "new disk in bytes is 1073741824: expected"),
    }
    for job, (disk, _) in refused.items():
        jobs.submit(hcl(job, named(disk, "read"), kind="batch"))
    for job, (_, words) in refused.items():
        assert words in ended(job).refusal()
    assert [path.name for path in NAMED.iterdir()] == ["db-0"], "nothing was created"
    jobs.submit(hcl("first", named('disk = "web-1"\ncreate = true\nsize = "1M"', "write=kept", "read"), kind="batch"))
    ended("first").says("sector 0: 'kept'")
    eventually(lambda: (NAMED / "web-1").stat().st_uid == 0, "it is reclaimed from the task's user")
    for job in ("one", "two"):
        jobs.submit(hcl(job, named('disk = "web-1"\nread_only = true', "read", "write=lost", "read", "stay")))
    for job in ("one", "two"):
        running(job).says("sector 0: 'lost'")
    assert (NAMED / "web-1").read_bytes().startswith(b"kept\0")
    assert not list(Path("/var/lib/solo5/copies").iterdir())


def test_named_disks_on_a_file_system_of_their_own_have_limits(jobs: Jobs) -> None:
    NAMED.mkdir(mode=0o700, exist_ok=True)
    ok("mount", "-t", "tmpfs", "-o", "size=8M,mode=0700", "tmpfs", str(NAMED))
    try:
        jobs.submit(hcl("large", named('disk = "web-1"\ncreate = true\nsize = "1M"', "read"), kind="batch"))
        words = ended("large").refusal()
        most = (8 << 20) // 10
        assert f"{1 << 20} bytes of disks in {NAMED}: expected at most {most}, since the limit of a task" in words
        assert not list(NAMED.iterdir())
    finally:
        ok("umount", str(NAMED))


LIMITS = 'io {\nread_bps = "50M"\nwrite_bps = "50M"\nread_iops = 1000\nwrite_iops = 1000\n}\n'
capped = pytest.mark.configured(USUAL.replace("ceilings {\n", f"ceilings {{\n{LIMITS}"))


@capped
@pytest.mark.usefixtures("no_disk")
def test_limits_of_disks_are_within_the_operators(jobs: Jobs) -> None:
    """The file system of this container has no block device: what is permitted is refused, too."""
    create = 'disk = "web-1"\ncreate = true\nsize = "1M"\n'
    above = {
        key: "51M" if key.endswith("bps") else "1001" for key in ("read_bps", "write_bps", "read_iops", "write_iops")
    }
    for key, value in above.items():
        jobs.submit(hcl(f"above-{key}", named(f'{create}io {{\n{key} = "{value}"\n}}', "read"), kind="batch"))
    jobs.submit(hcl("malformed", named(f'{create}io {{\nread_bps = "fast"\n}}', "read"), kind="batch"))
    for key, value in above.items():
        assert f'config.block "storage".io.{key} is {value}: expected ' in ended(f"above-{key}").refusal()
    assert "read_bps 'fast' is not an I/O limit: expected 100K to 1T per second" in ended("malformed").refusal()
    assert not list(NAMED.iterdir()), "nothing was created"
    jobs.submit(hcl("within", named(f"{create}io {{\nread_bps = 1000000\n}}", "read", "stay")))
    assert "and no block device: expected a device" in ended("within").refusal()


@pytest.mark.vm  # with a block device below its file system, and the controller
@pytest.mark.long
@capped
@pytest.mark.usefixtures("no_disk")
def test_limits_of_a_jobs_disk_are_the_kernels(jobs: Jobs) -> None:
    disk = 'disk = "web-1"\ncreate = true\nsize = "1M"\nio {\nread_bps = "10M"\nwrite_iops = 500\n}'
    [alloc] = jobs.run(hcl("within", named(disk, "read", "stay")))
    alloc.says("sector 0: ''")
    [line] = Path("/sys/fs/cgroup" + unit_property(alloc.unit(), "ControlGroup"), "io.max").read_text().splitlines()
    assert dict(word.split("=") for word in line.split()[1:]) == {
        "rbps": "10000000", "wbps": "50000000", "riops": "1000", "wiops": "500",
    }, "the job's own, and the operator's where it has none"  # fmt: skip


def template(destination: str, data: str) -> str:
    return block("template", destination=destination, data=data)


def archived(files: str, *words: str) -> str:
    return guest("tar.spt", *words, more=f'block "storage" {{\n  files = [{files}]\n}}\n')


def test_files_and_secrets_of_the_task_are_a_disk(jobs: Jobs) -> None:
    """The secret is in no file but Nomad's own, no unit property, no journal, and in Nomad's API nowhere."""
    secret = secrets.token_hex(16)
    job = hcl(
        "archived",
        archived('"local/app.toml", "secrets/db", "alloc/data"', "stay"),
        task=template("local/app.toml", "port = 80") + template("secrets/db/password", "HERE"),
    ).replace("HERE", '{{ with nomadVar \\"nomad/jobs/archived\\" }}{{ .password }}{{ end }}')
    ok("nomad", "var", "put", "-force", "nomad/jobs/archived", f"password={secret}")
    try:
        [alloc] = jobs.run(job)
        alloc.says(f"secrets/db/password type 0 size 32 sha256 {hashlib.sha256(secret.encode()).hexdigest()}")
        alloc.says(f"local/app.toml type 0 size 9 sha256 {hashlib.sha256(b'port = 80').hexdigest()}")
        alloc.says("member alloc/data/ type 5 size 0")
        source = alloc.file("guest/secrets/db/password")
        assert source.read_text() == secret
        found = everywhere(secret.encode(), source)
        assert [path for path in found if not path.startswith(str(DATA))] == []
        for path in ("/v1/allocations", f"/v1/allocation/{alloc}", "/v1/job/archived", "/v1/nodes"):
            assert secret not in json.dumps(api(path))
    finally:
        ok("nomad", "var", "purge", "nomad/jobs/archived")


def test_all_secrets_are_a_disk_without_what_nomad_has_there(jobs: Jobs) -> None:
    """Nomad makes a socket and a mark in each task's `secrets`; another socket there is refused."""
    [alloc] = jobs.run(hcl("whole", archived('"secrets/"', "stay"), task=template("secrets/key", "word")))
    alloc.says("end at")
    members = [line for line in alloc.logs().splitlines() if "member " in line]
    assert [line.split()[1] for line in members] == ["secrets/", "secrets/key"]
    secret = alloc.file("guest/secrets")
    assert {path.name for path in secret.iterdir()} == {"api.sock", ".nomad-mount", "key"}
    name = alloc.name()
    assert inspect(name)["disks"][0]["outdated"] is False
    (secret / "key").write_text("another")
    assert inspect(name)["disks"][0]["outdated"] is True


def of(name: str, content: bytes) -> str:
    return f"member {name} type 0 size {len(content)} sha256 {hashlib.sha256(content).hexdigest()}"


def test_the_payload_of_a_dispatch_is_a_file_of_the_guest(jobs: Jobs, tmp_path: Path) -> None:
    payload = tmp_path / "order"
    payload.write_text("ten of them")
    jobs.submit(
        hcl(
            "order", archived('"local/order"'), kind="batch", job='parameterized {\n  payload = "required"\n}',
            task='dispatch_payload {\n  file = "order"\n}',
        )
    )  # fmt: skip
    alloc = ended(jobs.dispatch("order", payload=payload))
    assert alloc.about()["ClientStatus"] == "complete", alloc.status()
    alloc.says(of("local/order", b"ten of them"))


def test_a_directory_of_the_task_that_another_user_replaced_is_not_archived(jobs: Jobs, tmp_path: Path) -> None:
    """Every user may rename `local`, if the way to the task's directory is open."""
    secret = tmp_path / "app.toml"
    secret.write_text("secret")
    job = hcl(
        "replaced",
        archived('"local/app.toml"', "stay"),
        task=template("local/app.toml", "port = 80"),
    )
    [alloc] = jobs.run(job)
    alloc.says("member local/app.toml type 0 size 9")
    local = alloc.file("guest/local")
    local.rename(local.with_name("moved"))
    local.symlink_to(tmp_path)
    ok("nomad", "alloc", "restart", alloc, "guest")
    assert ended("replaced") == alloc
    assert "cannot be used: expected a file below" in alloc.refusal()


REFUSED_FILES = {
    "nomads": ('"secrets/api.sock"', "is a socket: expected files and directories only"),
    "logs": ('"alloc/"', "is a FIFO: expected files and directories only"),
    "outside": ('"/etc/hostname"', "cannot be used: expected a file below"),
    "above": ('"../alloc/x"', "cannot be a name in an archive: expected a path without '..'"),
    "task": ('"tmp"', "cannot be used: expected a file below"),
    "missing": ('"local/none"', "cannot be used: expected a file below"),
}


def test_files_outside_of_the_task_are_no_disk(jobs: Jobs) -> None:
    for job, (files, _) in REFUSED_FILES.items():
        jobs.submit(hcl(job, archived(files), kind="batch"))
    for job, (_, words) in REFUSED_FILES.items():
        assert words in ended(job).refusal()
