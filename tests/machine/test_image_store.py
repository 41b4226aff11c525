"""The image store: quota, holes, permissions, concurrent starts; only images are opened."""

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.machine.conftest import GUESTS, Files, Machine, Runner, eventually, inspect, ok, sh

STORE = Path("/var/lib/solo5/images")
GIB = 1 << 30


def padded(target: Path, size: int, *, filled: bool) -> Path:
    """A guest with so many more bytes at its end, which a tender never reads; holes, or random bytes."""
    content = (GUESTS / "hello.spt").read_bytes()
    target.write_bytes(content + (os.urandom(size) if filled else b""))
    os.truncate(target, len(content) + size)
    return target


def taken() -> int:
    """Return the bytes on disk of all stored images."""
    return sum(file.stat().st_blocks * 512 for file in STORE.iterdir() if file.is_file())


def stored(name: str) -> Path:
    return STORE / str(inspect(name)["image_sha256"])


def unused_for_long(image: Path) -> None:
    before = time.time() - 3600
    os.utime(image, (before, before))


def test_an_image_that_declares_a_gibibyte_of_holes_takes_kilobytes(run: Runner, tmp_path: Path) -> None:
    image = padded(tmp_path / "sparse.spt", GIB, filled=False)
    before = taken()
    name = run(str(image), name="sparse")
    ok("solo5ctl", "wait", name)
    assert stored(name).stat().st_size > GIB
    assert taken() - before < 1 << 20


@pytest.fixture
def quota(place: Files) -> None:
    """Have room for 3 MB; images of earlier tests make room, as if nobody had used them for long."""
    for image in STORE.glob("[!.]*"):
        unused_for_long(image)
    place("/etc/solo5/test-store.toml", "image_store_mb = 3\n")


def test_the_store_keeps_to_its_quota_and_makes_room_by_itself(quota: None, run: Runner, tmp_path: Path) -> None:
    first, second = (padded(tmp_path / name, 2 << 20, filled=True) for name in ("1", "2"))
    name = run(str(first), name="first")
    ok("solo5ctl", "wait", name)
    refused = run.fail(str(second))
    assert refused.returncode == 125
    assert f"image '{second}' needs " in refused.stderr
    assert "expected room for it" in refused.stderr
    image = stored(name)
    unused_for_long(image)
    assert run.fail(str(second)).returncode == 125, "a task refers to the image, though it has ended"
    ok("solo5ctl", "rm", name)
    unused_for_long(image)
    ok("solo5ctl", "wait", run(str(second), name="second"))
    assert not image.exists()


HELD = """
import signal, sys, threading
from solo5_systemd.cli.main import main
from solo5_systemd.image import store
copy = store._copy
def held(*words):
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # this thread goes not a step further
    copy(*words)
store._copy = held
sys.argv = ["solo5ctl", *sys.argv[1:]]
sys.exit(main())
"""


def test_an_image_on_its_way_holds_up_no_other_start(run: Runner, tmp_path: Path) -> None:
    """The start is stopped while it copies the image, without any lock."""
    large, other = (padded(tmp_path / name, 1 << 20, filled=True) for name in ("large", "other"))
    run.names.append("held")
    command = [sys.executable, "-c", HELD, "run", "--detach", "--name", "held", str(large)]
    with subprocess.Popen(command) as starting:
        try:
            stopped = os.waitid(os.P_PID, starting.pid, os.WSTOPPED | os.WNOWAIT)
            assert stopped is not None
            assert stopped.si_status == signal.SIGSTOP
            ok("solo5ctl", "wait", run(str(other), name="other"))
            ok("solo5ctl", "gc")
        finally:
            starting.send_signal(signal.SIGCONT)
        assert starting.wait(60) == 0
    ok("solo5ctl", "wait", "held")


def test_a_full_file_system_is_answered_by_removing_unused_images(
    machine: Machine, run: Runner, tmp_path: Path
) -> None:
    image = padded(tmp_path / "image.spt", 1 << 20, filled=True)
    ok("mount", "-t", "tmpfs", "-o", "size=2m,mode=0755", "tmpfs", str(STORE))
    try:
        unused = STORE / ("0" * 64)
        unused.write_bytes(os.urandom((3 << 20) // 2))
        refused = run.fail(str(image))
        assert (refused.returncode, "No space left on device" in refused.stderr) == (125, True), refused.stderr
        unused_for_long(unused)
        name = run(str(image), name="roomy")
        ok("solo5ctl", "wait", name)
        assert not unused.exists()
        ok("solo5ctl", "rm", name)
    finally:
        ok("umount", "--lazy", str(STORE))


def test_a_store_that_is_made_without_the_packages_tmpfiles_is_closed_to_others(machine: Machine, run: Runner) -> None:
    aside = STORE.with_name("aside")
    ok("mv", str(STORE), str(aside))
    try:
        ok("solo5ctl", "wait", run("hello.spt"))
        made, packaged = STORE.stat(), aside.stat()
        assert stat.S_IMODE(made.st_mode) == stat.S_IMODE(packaged.st_mode) == 0o750
        assert (made.st_uid, made.st_gid) == (packaged.st_uid, packaged.st_gid)
    finally:
        sh("rm", "-rf", str(STORE))
        ok("mv", str(aside), str(STORE))


def test_a_fifo_that_is_named_as_an_image_is_not_opened(machine: Machine, run: Runner, tmp_path: Path) -> None:
    """The writer of the FIFO would continue if it were opened."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with subprocess.Popen(["sh", "-c", f"exec 3>{fifo}"]) as writer:
        path = Path(f"/proc/{writer.pid}/wchan")
        eventually(lambda: "fifo" in path.read_text() or "wait_for_partner" in path.read_text(), "it waits")
        assert "is a FIFO: expected a regular file" in run.fail(str(fifo)).stderr
        assert writer.poll() is None
        writer.kill()
