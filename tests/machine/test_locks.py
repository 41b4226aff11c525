"""No lock of a local user, and none of a tender, keeps systemd, the CLI or another task waiting."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.machine.conftest import GUESTS, NOBODY, Files, Machine, Runner, eventually, ok, says, sh, systemctl
from tests.machine.declared import Declarations
from tests.machine.test_hostile_tender import scope

TOPS = ("/run/solo5", "/var/lib/solo5", "/etc/solo5", "/run/netns", "/run/systemd/dynamic-uid", "/run/userdb")
HOLDER = Path("/srv/tests/machine/holder.py")

TENDER = """#!/bin/sh
# A tender that its guest has taken over: it locks all that it has open, or can open, and its image.
# Its text is an argument: for a file, Python needs an ioctl that solo5-confine refuses.
exec /usr/bin/python3 -c '
import glob, os, sys
if "--version" in sys.argv:
    os.execv("/usr/local/bin/solo5-spt", sys.argv)
sys.path.insert(0, "/srv/tests/machine")
from holder import hold
own = [f"/proc/self/fd/{each}" for each in os.listdir("/proc/self/fd")]
named = [os.path.realpath(each) for each in own] + sys.argv[1:]
named += [each.split("=")[-1].split(":")[-1] for each in sys.argv]
named += ["/var/lib/solo5/images", *glob.glob("/var/lib/solo5/images/*")]
import fcntl, signal
held = sum(map(hold, named))
for each in range(3):
    try:
        fcntl.flock(each, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held += 1
    except OSError:
        pass
print("held", held, flush=True)
signal.pause()
' "$@"
"""


@contextmanager
def holding(*tops: str) -> Iterator[int]:
    """A local user that holds all that it can open there; yields the number of its locks."""
    command = [*NOBODY, "/usr/bin/python3", str(HOLDER), *tops]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline().split()[1])
        finally:
            process.kill()


def timed(call: Callable[[], object]) -> float:
    begun = time.monotonic()
    call()
    return time.monotonic() - begun


def test_a_user_that_holds_all_that_it_can_open_delays_nothing(
    declare: Declarations, run: Runner, tmp_path: Path
) -> None:
    ok("solo5ctl", "disk", "create", "locked", "1MiB")
    unit = declare("web", "")
    systemctl("start", unit)
    free = timed(lambda: systemctl("daemon-reload"))
    with holding(*TOPS) as held:
        assert held > 10, "directories, unit files, declarations"
        assert timed(lambda: systemctl("daemon-reload")) < free + 5
        systemctl("restart", unit)
        name = run("netdisk.spt", options=("--block", "storage=disk:locked"))
        says(name, "sector 0")
        systemctl("stop", unit)
        systemctl("start", unit)
        ok("solo5ctl", "rm", "--force", name)
        for words in (["gc"], ["ps", "--all"], ["disk", "ls"], ["disk", "snapshot", "--copy", "locked"]):
            ok("solo5ctl", *words)
        ok("solo5ctl", "disk", "rm", "--snapshots", "locked")
        doctor = sh("solo5ctl", "doctor")
        assert "locked by another process" not in doctor.stdout + doctor.stderr
        with holding(*TOPS):  # also what there is since
            assert timed(lambda: systemctl("daemon-reload")) < free + 5
            systemctl("stop", unit)


def test_a_process_of_roots_that_has_the_lock_delays_a_daemon_reload_by_the_budget(
    machine: Machine, declare: Declarations
) -> None:
    machine.expect("/run/solo5/locks/declared is locked by another process: expected it to be unlocked within")
    unit = declare("web", "")
    free = timed(lambda: systemctl("daemon-reload"))
    command = ["flock", "/run/solo5/locks/declared", "sleep", "600"]
    with subprocess.Popen(command, start_new_session=True) as held:
        try:
            eventually(
                lambda: sh("flock", "--nonblock", "/run/solo5/locks/declared", "true").returncode, "the lock is held"
            )
            declare.write("new", f"[Unikernel]\nImage={GUESTS}/net.spt\n")
            assert timed(lambda: systemctl("daemon-reload")) < free + 5
            assert "is locked by another process" in sh("systemctl", "status", "new.service").stdout
            systemctl("start", unit)
        finally:
            os.killpg(held.pid, 9)
    systemctl("daemon-reload")
    systemctl("start", "new.service")


@pytest.fixture
def settings(place: Files) -> Path:
    """Settings with a tender that locks all it has."""
    tender = place("/srv/locking-tenders/solo5-spt", TENDER, 0o755)
    return place("/etc/solo5/locking.toml", f'tender_paths = ["{tender.parent}", "/usr/local/bin"]\n')


def test_a_tender_that_locks_its_image_and_all_it_has_delays_no_other_task(
    settings: Path, run: Runner, tmp_path: Path
) -> None:
    for name in ("mine", "other"):
        ok("solo5ctl", "disk", "create", name, "1MiB")
    with scope(tmp_path / "log", "held", "--block", "storage=disk:mine", f"{GUESTS}/netdisk.spt") as text:
        assert int(text.split()[1]) > 1, "its image and its standard input, at least"
        settings.unlink()  # the same image, by another tender
        name = run("netdisk.spt", options=("--block", "storage=disk:other"))
        says(name, "sector 0")
        ok("solo5ctl", "disk", "ls")
        ok("solo5ctl", "gc")
        ok("solo5ctl", "rm", "--force", name)
        ok("solo5ctl", "disk", "rm", "other")
