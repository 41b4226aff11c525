"""Attacks on disks at rest: no directory, link, name or mount on the way leads a tenant to the disk of another."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.machine.conftest import GUESTS, NOBODY, Machine, Runner, logged, ok, over, sh
from tests.machine.declared import declarations

EVE, BOB = 65534, 1999
"""Users without a task: UIDs; EVE is `NOBODY`."""


@pytest.fixture
def srv() -> Iterator[Path]:
    """A directory where only root can change the names, with one of user EVE and one of user BOB."""
    srv = Path("/srv/titles")
    srv.mkdir(mode=0o755)
    for name, uid in {"root": 0, "eve": EVE, "bob": BOB}.items():
        (srv / name).mkdir(mode=0o755)
        os.chown(srv / name, uid, uid)
    yield srv
    shutil.rmtree(srv)


def filled(path: Path, text: str, uid: int) -> Path:
    path.write_bytes(text.encode().ljust(4096, b"\0"))
    path.chmod(0o600)
    os.chown(path, uid, uid)
    return path


@pytest.fixture
def idle(run: Runner, srv: Path) -> Path:
    """The disk of another tenant that has no task now."""
    disk = filled(srv / "root" / "secret.img", "secret", 0)
    name = run("disk.spt", "read", options=("--block", f"storage={disk}"))
    ok("solo5ctl", "wait", name)
    ok("solo5ctl", "rm", name)
    assert disk.owner() == "root", "at rest it is root's"
    return disk


def of_eve(command: str) -> None:
    ok(*NOBODY, "sh", "-ec", command)


def link(disk: Path, there: Path) -> None:
    of_eve(f"ln -s {disk} {there}")


def link_of_a_directory(disk: Path, there: Path) -> None:
    of_eve(f"mv {there.parent} {there.parent}.gone && ln -s {disk.parent} {there.parent}")
    disk.rename(disk.with_name(there.name))


def hard_link(disk: Path, there: Path) -> None:
    there.hardlink_to(disk)


def rename(disk: Path, there: Path) -> None:
    """As from a directory of an allocation, which every user may write."""
    disk.rename(there)


def bind_mount(disk: Path, there: Path) -> None:
    there.touch()
    ok("mount", "--bind", str(disk), str(there))


def link_to_a_link_of_roots(disk: Path, there: Path) -> None:
    """A link of root's proves nothing about the directory that it is in."""
    (disk.parent / "current").symlink_to(disk)
    (disk.parent / "current").rename(there)


ATTACKS = (link, link_of_a_directory, hard_link, rename, bind_mount, link_to_a_link_of_roots)


def test_the_owner_of_a_directory_on_the_way_gets_no_idle_disk(run: Runner, srv: Path, idle: Path) -> None:
    eve = srv / "eve" / "sub"
    there = eve / "disk.img"
    of_eve(f"test -w {srv}/eve")
    for attack in ATTACKS:
        filled(idle, "secret", 0)
        if attack is rename:
            shutil.chown(idle, "solo5")  # an operator has marked it
        of_eve(f"mkdir {eve}")
        attack(idle, there)
        found = os.stat(there)  # noqa: PTH116 - of the file, by any of its names
        try:
            for how in ("", ",ephemeral"):
                done = run.fail("--block", f"storage={there}{how}", f"{GUESTS}/disk.spt", "write=taken", "read")
                assert f"user {EVE} can change: expected" in done.stderr, (attack.__name__, done.stderr)
                assert "secret" not in done.stdout
            now = there.stat()
            assert (now.st_ino, now.st_uid) == (found.st_ino, found.st_uid), "it is given to nobody"
            assert there.read_bytes().startswith(b"secret\0")
        finally:
            sh("umount", str(there))
        ok("rm", "-r", "--force", str(eve), f"{eve}.gone")


def test_a_declaration_by_a_users_directory_gets_that_users_files_alone(run: Runner, srv: Path, idle: Path) -> None:
    """The disk is that user's again when the task has ended, and the next start's."""
    own = filled(srv / "eve" / "disk.img", "own", EVE)
    (srv / "eve" / "link.img").symlink_to(idle)
    for _ in range(2):
        name = run("disk.spt", "read", options=("--block", f"storage={own}"))
        assert "sector 0: 'own'" in over(name)
        assert own.stat().st_uid not in (EVE, 0), "the task's user"
        ok("solo5ctl", "rm", name)
        assert own.stat().st_uid == EVE
    with declarations() as declare:
        unit = declare("titled", f"Argument=read\nArgument=stay\nBlock=storage={own}", image="disk.spt")
        ok("systemctl", "start", unit)
        own.unlink()
        of_eve(f"ln -s {idle} {own}")
        assert sh("systemctl", "restart", unit).returncode != 0
        logged(f"user {EVE} can change", "-u", "solo5-prepare@titled.service")
    assert idle.read_bytes().startswith(b"secret\0")


def test_of_two_users_on_the_way_neither_leads_to_the_others_file(run: Runner, srv: Path) -> None:
    """BOB can put another directory of EVE's in the place of this one."""
    inner = srv / "bob" / "eve"
    inner.mkdir()
    os.chown(inner, EVE, EVE)
    for uid in (EVE, BOB, 0):
        disk = filled(inner / f"{uid}.img", "secret", uid)
        done = run.fail("--block", f"storage={disk}", f"{GUESTS}/disk.spt", "read")
        assert f"by a directory that user {BOB} and user {EVE} can change" in done.stderr


def test_a_disk_of_roots_in_a_directory_of_all_users_has_no_other_name(run: Runner) -> None:
    """EVE may have put it there by link(2), or a link of root's by rename(2)."""
    there, other = Path("/var/tmp/titles.img"), Path("/var/tmp/other.img")
    try:
        name = run("disk.spt", "read", options=("--block", f"storage={filled(there, 'own', 0)}"))
        ok("solo5ctl", "wait", name)
        ok("solo5ctl", "rm", name)
        other.symlink_to(there)
        done = run.fail("--block", f"storage={other}", f"{GUESTS}/disk.spt", "read")
        assert "by a directory that several users can change" in done.stderr
        other.unlink()
        other.hardlink_to(there)
        done = run.fail("--block", f"storage={there}", f"{GUESTS}/disk.spt", "read")
        assert "has 2 names: expected one" in done.stderr
    finally:
        for each in (there, other):
            each.unlink(missing_ok=True)


def test_a_disk_that_was_not_taken_back_is_that_users_again(machine: Machine, run: Runner, srv: Path) -> None:
    """As after a crash: the task's user owns it at the next start, and its record has who owned it."""
    disk = filled(srv / "eve" / "disk.img", "own", EVE)
    name = run("disk.spt", "read", options=("--block", f"storage={disk}"))
    ok("solo5ctl", "wait", name)
    uid = disk.stat().st_uid
    assert uid not in (EVE, 0)
    other = run("disk.spt", "read", options=("--block", f"storage={disk}"))
    ok("solo5ctl", "wait", other)
    assert disk.stat().st_uid not in (EVE, 0, uid)
    ok("solo5ctl", "rm", name)
    ok("solo5ctl", "rm", other)
    assert disk.stat().st_uid == EVE
    os.chown(disk, uid, uid)
    done = run.fail("--block", f"storage={disk}", f"{GUESTS}/disk.spt", "read")
    assert f"resolves to a file of user {uid}" in done.stderr, "a number of the range is no title"


@pytest.fixture
def named(machine: Machine) -> Iterator[Path]:
    """Two named disks, `source` with data and `victim`; the directory of named disks."""
    (scratch := Path("/var/tmp/titles.raw")).write_bytes(os.urandom(1 << 20) * 64)
    try:
        ok("solo5ctl", "disk", "import", "source", str(scratch))
        ok("solo5ctl", "disk", "create", "victim", "64K")
        yield Path("/var/lib/solo5/disks")
    finally:
        scratch.unlink()
        sh("solo5ctl", "disk", "rm", "source")
        sh("solo5ctl", "disk", "rm", "victim")


def test_an_export_that_fails_removes_nothing_in_a_directory_that_was_swapped(srv: Path, named: Path) -> None:
    """EVE replaces the directory as soon as the file has its name: the old way removed a named disk then."""
    out = srv / "eve" / "out"
    of_eve(f"mkdir {out}")
    swap = f"until test -e {out}/victim; do :; done; mv {out} {out}.gone; ln -s {named} {out}"
    eve = subprocess.Popen([*NOBODY, "sh", "-c", swap])
    try:
        done = sh("prlimit", f"--fsize={48 << 20}", "solo5ctl", "disk", "export", "source", str(out / "victim"))
        assert done.returncode != 0
        assert "File too large" in done.stderr
    finally:
        eve.kill()
        eve.wait()
    assert (named / "victim").stat().st_size == 64 << 10
    assert not [path for path in srv.glob("eve/*/*") if path.is_file() and not path.is_symlink()], "nothing is left"


def test_output_follows_no_link_of_another_user(srv: Path, named: Path) -> None:
    (srv / "eve" / "out").symlink_to(srv / "root")
    commands = (
        ("disk", "export", "source", f"{srv}/eve/out/copy"),
        ("metrics", "--textfile", f"{srv}/eve/out/solo5.prom"),
    )
    for command in commands:
        done = sh("solo5ctl", *command)
        assert done.returncode != 0
        assert "is behind a symbolic link that another user can change" in done.stderr
    assert not list((srv / "root").iterdir())
    (srv / "eve" / "out").unlink()
    of_eve(f"mkdir {srv}/eve/out")
    for command in commands:
        ok("solo5ctl", *command)
    assert sorted(path.name for path in (srv / "eve" / "out").iterdir()) == ["copy", "solo5.prom"]


def test_an_import_reads_no_file_that_another_user_leads_to(machine: Machine, srv: Path) -> None:
    for secret in (filled(srv / "root" / "secret.img", "secret", 0), Path("/dev/null")):
        (srv / "eve" / secret.name).symlink_to(secret)
        done = sh("solo5ctl", "disk", "import", "taken", f"{srv}/eve/{secret.name}")
        assert "resolves to a file of user 0, by a directory that another user can change" in done.stderr
        assert ok("solo5ctl", "disk", "ls", "-q") == ""
