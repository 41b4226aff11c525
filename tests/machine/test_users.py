"""The users of tasks, systemd's dynamic users in the same range, and journald's files for them."""

from pathlib import Path

from tests.machine.conftest import GUESTS, Files, Machine, Runner, eventually, given, ok, sh

STATE = Path("/var/lib/private/somebody")
GIVEN_DISKS = Path("/var/lib/solo5/users")


def user(name: str) -> int:
    return int(ok("systemctl", "show", "--value", "--property=User", f"solo5-task-{name}.service"))


def test_consoles_are_in_the_systems_journal_alone(machine: Machine, run: Runner) -> None:
    """journald creates a file of 8 MiB for each user beyond systemd's range."""
    before = set(Path("/var/log/journal").glob("*/*"))
    first, second = run("sleeper.spt"), run("sleeper.spt")
    assert user(first) != user(second)
    eventually(lambda: ok("journalctl", "--unit", f"solo5-task-{second}.service"), "it has written")
    ok("journalctl", "--sync")
    assert {file for file in Path("/var/log/journal").glob("*/*") if file not in before} == set()


def test_systemd_takes_another_user_than_a_tasks(machine: Machine, run: Runner) -> None:
    """systemd prefers the user that owns the service's state directory, if it is free."""
    task = run("sleeper.spt")
    STATE.mkdir(parents=True)
    ok("chown", str(user(task)), str(STATE))
    service = ("--property=DynamicUser=yes", f"--property=StateDirectory={STATE.name}", "--property=User=somebody")
    taken = int(ok("systemd-run", "--quiet", "--pipe", "--wait", *service, "id", "--user"))
    assert taken != user(task)
    assert STATE.stat().st_uid == taken
    ok("rm", "--recursive", str(STATE), "/var/lib/somebody")


def test_a_disk_that_cannot_be_taken_back_keeps_its_user_from_every_other_task_and_unit(
    machine: Machine, run: Runner, tmp_path: Path
) -> None:
    """The file system is read-only, as after an error."""
    disk = given(tmp_path / "disk.img")
    name = run("disk.spt", "read", options=("--block", f"storage={disk}"))
    ok("solo5ctl", "wait", name)
    uid = user(name)
    ok("mount", "--bind", str(tmp_path), str(tmp_path))
    ok("mount", "-o", "remount,bind,ro", str(tmp_path))
    why = f"disk '{disk}' cannot be reclaimed from user {uid}: Read-only file system."
    try:
        assert why in sh("solo5ctl", "rm", name).stderr
        assert why in ok("solo5ctl", "gc")
    finally:
        ok("umount", str(tmp_path))
    assert disk.stat().st_uid == uid
    assert ok("getent", "passwd", str(uid)), "no unit of systemd's gets it"
    assert [file.name for file in GIVEN_DISKS.iterdir()] == [f"{uid}"], "and no task"
    ok("solo5ctl", "gc")
    assert disk.owner() == "root"
    assert sh("getent", "passwd", str(uid)).returncode == 2
    assert not list(GIVEN_DISKS.iterdir())


def test_a_user_whose_disks_volume_was_unmounted_is_kept_until_another_task_has_the_disk(
    machine: Machine, run: Runner, tmp_path: Path
) -> None:
    """The volume is mounted at another path then, as for each allocation of Nomad; its path of before never returns."""
    (volume := tmp_path / "volume").mkdir()
    (first := tmp_path / "first").mkdir()
    (second := tmp_path / "second").mkdir()
    given(volume / "disk.img")
    ok("mount", "--bind", str(volume), str(first))
    name = run("disk.spt", "write=kept", options=("--block", f"storage={first / 'disk.img'}"))
    ok("solo5ctl", "wait", name)
    uid = user(name)
    ok("umount", str(first))
    why = f"disk '{first / 'disk.img'}' cannot be reclaimed from user {uid}: its file system is not mounted."
    assert why in sh("solo5ctl", "rm", name).stderr
    assert why in ok("solo5ctl", "gc")
    assert (volume / "disk.img").stat().st_uid == uid
    assert ok("getent", "passwd", str(uid)), "nothing else gets the user that owns a file"
    ok("mount", "--bind", str(volume), str(second))
    try:
        other = run("disk.spt", "read", options=("--block", f"storage={second / 'disk.img'}"))
        ok("solo5ctl", "wait", other)
        assert "sector 0: 'kept'" in ok("solo5ctl", "logs", other)
        assert sh("getent", "passwd", str(uid)).returncode == 2, "it owns nothing any more"
        assert [file.name for file in GIVEN_DISKS.iterdir()] == [str(user(other))]
        ok("solo5ctl", "rm", other)
    finally:
        ok("umount", str(second))
    assert (volume / "disk.img").owner() == "root"
    assert not list(GIVEN_DISKS.iterdir())


def test_disks_of_before_a_boot_are_taken_back_by_the_first_start_after_it(
    machine: Machine, run: Runner, tmp_path: Path
) -> None:
    """/run is empty then, and no driver runs."""
    disk = given(tmp_path / "disk.img")
    name = run("disk.spt", "read", options=("--block", f"storage={disk}"))
    ok("solo5ctl", "wait", name)
    for file in (*Path("/run/solo5/users").iterdir(), *Path("/run/userdb").glob(f"*{user(name)}.user")):
        file.unlink()
    assert disk.stat().st_uid == user(name)
    other = run("sleeper.spt")
    assert disk.owner() == "root"
    assert not list(GIVEN_DISKS.iterdir())
    assert user(other)


def test_a_task_takes_another_user_than_systemds(run: Runner, place: Files) -> None:
    """The range is one uid, which a service with DynamicUser= has."""
    ok("systemd-run", "--unit=somebody", "--property=DynamicUser=yes", "sleep", "infinity")
    pid = ok("systemctl", "show", "--value", "--property=MainPID", "somebody").strip()
    uid = 0

    def runs_as_its_user() -> bool:
        nonlocal uid  # not the owner of /proc/PID, which is root while the process executes a program
        uid = int(Path("/proc", pid, "status").read_text().partition("\nUid:")[2].split()[0])
        return uid != 0

    eventually(runs_as_its_user, "the service runs as its user")
    place("/etc/solo5/one-user.toml", f'task_uids = "{uid}-{uid}"\n')
    refused = run.fail("--detach", f"{GUESTS}/sleeper.spt")
    assert f"all 1 users of tasks, {uid} to {uid}, are in use" in refused.stderr
    ok("systemctl", "stop", "somebody")
