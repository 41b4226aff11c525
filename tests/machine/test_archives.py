"""Archives of files as disks: what the guest reads, and where their content is not."""

import hashlib
import os
import secrets
import shutil
import signal
import socket
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.machine.acting import killed
from tests.machine.conftest import (
    GUESTS,
    NOBODY,
    Files,
    Machine,
    Runner,
    console,
    eventually,
    inspect,
    ok,
    over,
    registered,
    says,
    sh,
)
from tests.machine.declared import Declarations, main_pid

from solo5_systemd.unit.tender import PRIVATE

MEMORY = Path("/run/solo5/memory")


@pytest.fixture(autouse=True)
def nothing_left(machine: Machine) -> Iterator[None]:
    yield
    assert not [*MEMORY.glob("*")]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A directory of configuration, with a secret."""
    (tmp_path / "conf" / "sub").mkdir(parents=True)
    (tmp_path / "conf" / "app.toml").write_text("port = 80\n")
    (tmp_path / "conf" / "sub" / "key").write_bytes(os.urandom(100_000))
    (tmp_path / "conf" / "empty").touch()
    return tmp_path / "conf"


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def options(files: Path, more: str = "") -> tuple[str, str]:
    return "--block", f"storage=files:{files}{more}"


def test_the_guest_reads_the_files_and_its_writes_change_none(run: Runner, files: Path) -> None:
    name = run("tar.spt", "write=mine", "stay", options=options(files))
    says(name, "sector 0: 'mine'")
    text, prefix = console(name), str(files).lstrip("/")
    for member in ("app.toml", "empty", "sub/key"):
        size = (files / member).stat().st_size
        assert f"member {prefix}/{member} type 0 size {size} sha256 {sha256(files / member)}" in text
    assert f"member {prefix}/sub/ type 5 size 0" in text
    assert (files / "app.toml").read_text() == "port = 80\n"
    [disk] = inspect(name)["disks"]
    assert (disk["backing"], disk["path"], len(disk["sha256"])) == ("archive", prefix, 64)
    again = run("tar.hvt", "stay", options=options(files))
    says(again, f"member {prefix}/sub/key type 0")
    assert inspect(again)["disks"][0]["sha256"] == disk["sha256"], "the same files make the same bytes"
    process = Path(f"/proc/{inspect(name)['pid']}")
    status = (process / f"root/run/solo5-disks/{PRIVATE}/storage").stat()
    assert (status.st_mode & 0o777, status.st_nlink) == (0o600, 0)
    assert status.st_uid == process.stat().st_uid != 0
    [mount] = [line for line in Path("/proc/mounts").read_text().splitlines() if " ramfs " in line and "solo5" in line]
    assert mount.split()[1] == str(MEMORY), "all starts have one file system"
    assert {"nosuid", "nodev", "noexec", "mode=700"} <= set(mount.split()[3].split(","))
    assert not list(MEMORY.iterdir()), "which has no name of a running task"
    mounts = [line.split(" - ") for line in (process / "mountinfo").read_text().splitlines()]
    [kind] = [after.split()[0] for before, after in mounts if f"/run/solo5-disks/{PRIVATE}/storage" in before]
    assert kind == "ramfs", "it is never swapped"


def test_one_file_is_the_disk_itself(run: Runner, files: Path) -> None:
    name = run("disk.spt", "read", options=options(files / "app.toml", ",format=raw"))
    said = over(name)
    assert "capacity 512 bytes" in said
    assert "port = 80" in said


def everywhere(secret: bytes, source: Path) -> list[str]:
    """Return where a text is: in files, command lines, environments, the journal and unit properties."""
    found = []
    places = ("/run", "/var", "/tmp", "/etc", "/srv", "/root", "/opt", "/home", "/dev/shm")
    listed = subprocess.run(
        ["grep", "-rlaF", "--devices=skip", "--file=-", *places], input=secret, capture_output=True, check=False
    )
    found += [path for path in listed.stdout.decode().splitlines() if Path(path) != source]
    for process in Path("/proc").glob("[0-9]*"):
        for file in ("cmdline", "environ"):
            try:
                if secret in (process / file).read_bytes():
                    found.append(str(process / file))
            except OSError:
                continue
    for command in (["journalctl", "--no-pager", "-o", "export"], ["systemctl", "show", "*"], ["busctl", "tree"]):
        if secret in subprocess.run(command, capture_output=True, check=False).stdout:
            found.append(" ".join(command))
    return found


def test_a_secret_is_nowhere_but_in_the_guests_disk(run: Runner, tmp_path: Path) -> None:
    secret = secrets.token_hex(16).encode()
    source = tmp_path / "secret"
    source.write_bytes(secret)
    name = run("tar.spt", "stay", options=options(source))
    says(name, f"sha256 {hashlib.sha256(secret).hexdigest()}")
    pid = inspect(name)["pid"]
    assert secret in Path(f"/proc/{pid}/root/run/solo5-disks/{PRIVATE}/storage").read_bytes(), "the search can find it"
    assert everywhere(secret, source) == []
    limits = Path(f"/proc/{pid}/limits").read_text()
    assert [line.split()[4:6] for line in limits.splitlines() if line.startswith("Max core")] == [["0", "0"]]
    ok("kill", "-ABRT", str(pid))
    ok("solo5ctl", "wait", name)
    ok("solo5ctl", "rm", name)
    assert everywhere(secret, source) == [], "nor when its tender was killed by a signal that dumps core"
    source.unlink()
    eventually(lambda: not registered(), "its user is free")


DUMPS = Path("/run/dumps")
"""The kernel takes at most 127 bytes of a pattern."""

PIPED = f"""#!/bin/sh
exec /bin/cat > {DUMPS}/core.$1
"""


HOLDER = """
import signal, sys
held = sys.stdin.read()
print(flush=True)
signal.pause()
"""


@pytest.mark.vm  # kernel.core_pattern is one setting of the host and all its containers
def test_a_core_dump_that_the_kernel_pipes_has_no_secret(run: Runner, tmp_path: Path) -> None:
    """The kernel does so in spite of LimitCORE=0, as another process with the same limit shows."""
    secret = secrets.token_hex(16).encode()
    source, pattern, program = tmp_path / "secret", Path("/proc/sys/kernel/core_pattern"), DUMPS / "program"
    source.write_bytes(secret)
    DUMPS.mkdir()
    program.write_text(PIPED)
    program.chmod(0o755)
    before = pattern.read_text()
    pattern.write_text(f"|{program} %P")
    try:
        holder = subprocess.Popen(
            ["prlimit", "--core=0", "python3", "-c", HOLDER],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        with holder:
            assert holder.stdin is not None
            assert holder.stdout is not None
            holder.stdin.write(secret)
            holder.stdin.close()
            holder.stdout.readline()
            holder.send_signal(signal.SIGABRT)
        name = run("disk.spt", "read", "stay", options=options(source, ",format=raw"))
        says(name, f"sector 0: '{secret.decode()}'")
        pid = inspect(name)["pid"]
        assert int(Path(f"/proc/{pid}/coredump_filter").read_text(), 16) == 0
        ok("kill", "-ABRT", str(pid))
        ok("solo5ctl", "wait", name)
        cores = [DUMPS / f"core.{each}" for each in (holder.pid, pid)]
        eventually(lambda: all(core.exists() for core in cores), "both are piped")
        assert [secret in core.read_bytes() for core in cores] == [True, False]
    finally:
        pattern.write_text(before)
        shutil.rmtree(DUMPS)


def test_a_credential_is_a_disk(run: Runner, place: Files) -> None:
    place("/etc/credstore/token", "of the operator")
    name = run("disk.spt", "read", options=("--block", "storage=credential:token"))
    assert "sector 0: 'of the operator'" in over(name)
    missing = run.fail("--block", "storage=credential:none", f"{GUESTS}/disk.spt", "read")
    assert "no credential is named 'none': expected a file in /etc/credstore" in missing.stderr


def test_an_encrypted_credential_is_decrypted_in_memory(run: Runner, place: Files, tmp_path: Path) -> None:
    stored = place("/etc/credstore.encrypted/token")
    stored.unlink()
    secret = secrets.token_hex(16)
    (tmp_path / "plain").write_text(secret)
    made = sh("systemd-creds", "encrypt", "--with-key=host", "--name=token", str(tmp_path / "plain"), str(stored))
    assert made.returncode == 0, made.stderr
    name = run("disk.spt", "sector=0", "stay", options=("--block", "storage=credential:token"))
    says(name, "capacity 512 bytes")
    disk = Path(f"/proc/{inspect(name)['pid']}/root/run/solo5-disks/{PRIVATE}/storage")
    assert disk.read_bytes().startswith(secret.encode() + b"\0")
    assert everywhere(secret.encode(), tmp_path / "plain") == []
    stored.write_bytes(b"damaged")
    failed = run.fail("--block", "storage=credential:token", f"{GUESTS}/disk.spt", "read")
    assert "credential 'token' cannot be decrypted" in failed.stderr
    assert "Traceback" not in failed.stderr


def planted(kind: str, directory: Path) -> None:
    match kind:
        case "link":
            (directory / "bad").symlink_to("/etc/shadow")
        case "fifo":
            os.mkfifo(directory / "bad")
        case "socket":
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(str(directory / "bad"))
        case "device":
            os.mknod(directory / "bad", 0o020666, os.makedev(1, 5))
        case "hard link":
            (directory / "bad").hardlink_to(directory / "app.toml")
        case "large":
            with (directory / "bad").open("wb") as file:
                file.truncate((16 << 20) + 1)
        case "many":
            for number in range(4097):
                (directory / str(number)).touch()
        case _:
            (directory / "/".join("d" * 40)).mkdir(parents=True)


def test_what_is_no_plain_file_is_refused_before_anything_is_made(run: Runner, files: Path) -> None:
    for kind, words in {
        "link": "is a symbolic link: expected files and directories only",
        "fifo": "is a FIFO: expected files and directories only",
        "socket": "is a socket: expected",
        "device": "is a device: expected",
        "hard link": "has 2 names: expected one",
        "large": "have more than 16 MiB, which would be in memory",
        "many": "has more than 4096 entries",
        "deep": "has more than 32 levels of directories",
    }.items():
        directory = files.with_name(kind)
        shutil.copytree(files, directory)
        planted(kind, directory)
        failed = run.fail(*options(directory), f"{GUESTS}/tar.spt")
        assert (failed.returncode, words in failed.stderr) == (125, True), failed.stderr
        assert "Traceback" not in failed.stderr


KILLED = """
from tests.machine.acting import die, start
from solo5_systemd.base.names import DeviceName
from solo5_systemd.storage.archive import archive_disk, member
from solo5_systemd.storage.model import ArchiveRequest
request = archive_disk(DeviceName("storage"), ArchiveRequest(members=(member("hostname", "/etc/hostname"),)))
start("killed", request, die)
"""


def test_a_starter_that_is_killed_leaves_an_archive_until_the_next_start(run: Runner, files: Path) -> None:
    killed(KILLED)
    [left] = MEMORY.iterdir()
    assert len(list(left.iterdir())) == 1
    assert f"private disk {left}: left by a start that was killed" in ok("solo5ctl", "gc", "--dry-run")
    name = run("tar.spt", options=options(files))
    ok("solo5ctl", "wait", name)
    assert not [*MEMORY.iterdir()]
    sh("solo5ctl", "rm", "--force", "killed")
    ok("solo5ctl", "gc")


def test_no_other_user_reaches_the_private_disks_of_a_declared_task(declare: Declarations, place: Files) -> None:
    """They keep a name until the task has ended: the process that made them has exited when PID 1 mounts them."""
    golden = place("/srv/golden.img", b"golden".ljust(512, b"\0"))
    blocks = f"Block=first={golden},ephemeral\nBlock=second=files:{golden}"
    unit = declare("pair", blocks, image="sequence.spt")
    ok("systemctl", "start", unit)
    disks = [*MEMORY.glob("*/*"), *Path("/var/lib/solo5/copies").glob("*/*")]
    assert len(disks) == 2
    user = disks[0].stat().st_uid
    for disk in disks:
        assert (disk.stat().st_uid, disk.stat().st_mode & 0o777) == (user, 0o600)
        assert user >= 61184, "it is the task's"
        for way in (disk, Path(f"/proc/{main_pid(unit)}/root")):
            refused = sh(*NOBODY, "cat", str(way))
            assert "Permission denied" in refused.stderr
    assert stat.S_IMODE(MEMORY.stat().st_mode) == 0o700
    ok("systemctl", "stop", unit)
    eventually(lambda: not [disk for disk in disks if disk.exists()], "their names end with the task")
