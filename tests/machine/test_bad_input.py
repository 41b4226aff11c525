"""What cannot work is refused in one clear sentence, before anything is made; `machine` proves that nothing was."""

import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from tests.machine.conftest import GUESTS, NOBODY, Files, Machine, Runner, ok, says, sh


def refused(status: int, *words: str, of: tuple[str, ...]) -> str:
    """`solo5ctl run` is refused with this status, in one sentence that holds these words; the sentence."""
    done = sh("solo5ctl", "run", "--rm", *of)
    assert done.returncode == status, f"{done.returncode}: {done.stdout}{done.stderr}"
    assert "Traceback" not in done.stderr
    lines = done.stderr.strip().splitlines()
    assert 1 <= len(lines) <= 3, done.stderr
    assert lines[0].startswith("solo5ctl: ")
    for word in words:
        assert word.lower() in done.stderr.lower(), f"{word!r} is not in {done.stderr!r}"
    return done.stderr


@pytest.fixture
def elsewhere(place: Files) -> Path:
    """/etc/solo5 with a tender path of the test's own."""
    directory = place("/run/test-tenders/none").parent
    place("/etc/solo5/zz-test.toml", f'tender_paths = ["{directory}"]\n')
    return directory


def test_a_tender_that_is_missing_or_of_another_abi(elsewhere: Path) -> None:
    refused(127, "solo5-hvt", str(elsewhere), of=(f"{GUESTS}/hello.hvt",))
    tender = elsewhere / "solo5-hvt"
    tender.write_text("#!/bin/sh\nprintf 'solo5-hvt tender, version v0.7.0\\nABI version 1\\n' >&2\n")
    tender.chmod(0o755)
    refused(126, "ABI version 2", "ABI 1", of=(f"{GUESTS}/hello.hvt",))


def test_not_root(machine: Machine) -> None:
    done = sh(*NOBODY, "solo5ctl", "run", f"{GUESTS}/hello.spt")
    assert done.returncode == 125
    assert "root" in done.stderr
    assert "Traceback" not in done.stderr


def test_no_kvm(machine: Machine) -> None:
    done = sh(  # with /dev/null, for the first `solo5-hvt --version` of the machine
        "unshare", "--mount", "sh", "-c", "mount -t tmpfs none /mnt && touch /mnt/null && mount --bind /dev/null "
        f"/mnt/null && mount --rbind /mnt /dev && exec solo5ctl run {GUESTS}/hello.hvt",
    )  # fmt: skip
    assert done.returncode == 125
    assert "/dev/kvm" in done.stderr


def test_image_without_read_permission_for_root_squash_is_read_by_root(machine: Machine, tmp_path: Path) -> None:
    """The store's copy is what the tender reads: the source's mode and place do not matter."""
    image = tmp_path / "private.hvt"
    shutil.copy(GUESTS / "hello.hvt", image)
    image.chmod(0o000)
    assert sh("solo5ctl", "run", "--rm", str(image)).returncode == 0


def test_image_replaced_after_the_check_is_not_what_runs(run: Runner, tmp_path: Path) -> None:
    image = tmp_path / "image.hvt"
    shutil.copy(GUESTS / "sleeper.hvt", image)
    ok("solo5ctl", "run", "-d", "--name", "swapped", str(image))
    run.names.append("swapped")
    image.write_bytes(b"something else")
    says("swapped", "sleeping")


def test_full_run_directory(machine: Machine) -> None:
    """A full /run is said, and nothing stays half-made."""
    machine.expect("space|full|ENOSPC")
    filler = Path("/run/filler")
    try:
        room = os.statvfs("/run")
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            os.posix_fallocate(file.fileno(), 0, room.f_bavail * room.f_frsize - (1 << 20))
            file.seek(0, os.SEEK_END)
            while file.write(bytes(1 << 16)):
                pass
        done = sh("solo5ctl", "run", "--rm", f"{GUESTS}/net.spt", timeout=120)
        assert (done.returncode, "Traceback" in done.stderr) == (125, False), done.stderr
        assert "No space left on device" in done.stderr
    finally:
        filler.unlink()


def test_network_service_not_installed(machine: Machine) -> None:
    activation = Path("/usr/share/dbus-1/system-services/org.solo5.Network1.service")
    aside = Path("/run/aside.service")
    ok("systemctl", "stop", "solo5-networkd.service")
    shutil.move(activation, aside)
    ok("systemctl", "reload", "dbus.service")
    try:
        refused(125, "solo5-networkd", of=(f"{GUESTS}/net.spt",))
    finally:
        shutil.move(aside, activation)
        ok("systemctl", "reload", "dbus.service")


def test_daemon_reload_in_the_middle(run: Runner) -> None:
    with subprocess.Popen(["sh", "-c", "while :; do systemctl daemon-reload; done"]) as reloader:
        names = [run("net.spt", "--ipv4={net.service.ipv4_cidr}") for _ in range(5)]
        reloader.kill()
    assert set(names) <= set(ok("solo5ctl", "ps", "--quiet").split())
