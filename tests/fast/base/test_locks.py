"""One module locks, what only its user can open, and never for ever."""

import ast
import asyncio
import fcntl
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Queue

import pytest

from solo5_systemd.base import locks
from solo5_systemd.base.errors import HostError
from solo5_systemd.base.locks import LockedError, closing, lock, lock_directory, lock_file, try_lock

ROOT = Path(__file__).parents[3]
SOURCES = ROOT / "src" / "solo5_systemd"
LOCKING = re.compile(r"flock|lockf|F_(OFD_)?SETLKW?(64)?|F_SETLEASE|F_NOTIFY")

PROGRAMS = {"solo5-thaw@.service": "waits for the end of a pause, at most RuntimeMaxSec=, for a file that is root's"}
"""The files outside of src/ that lock, each with what ends the wait."""


def locking(path: Path) -> Iterator[str]:
    """The names of what locks that a module uses, however it has imported them."""
    text = path.read_text()
    for node in ast.walk(ast.parse(text)) if LOCKING.search(text) else ():
        names = [node.attr] if isinstance(node, ast.Attribute) else [node.id] if isinstance(node, ast.Name) else []
        names += [each.name for each in node.names] if isinstance(node, ast.ImportFrom) else []
        yield from (name for name in names if LOCKING.fullmatch(name))


def test_one_module_locks() -> None:
    found = {str(path.relative_to(SOURCES)) for path in SOURCES.rglob("*.py") if any(locking(path))}
    assert found == {"base/locks.py"}


def test_the_search_finds_each_way_to_lock(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    calls = ("f.flock(3, 2)", "from fcntl import lockf", "os.lockf(3, 1, 0)", "f.fcntl(3, f.F_OFD_SETLKW, b'')")
    for text in (*calls, "fcntl.fcntl(3, fcntl.F_SETLEASE, 1)"):
        module.write_text(text)
        assert list(locking(module)), text
    module.write_text("import fcntl\nfcntl.ioctl(3, 4)\nflocks = 1")
    assert not list(locking(module))


def test_no_other_program_locks() -> None:
    files = [path for top in ("units", "packaging") for path in (ROOT / top).rglob("*") if path.is_file()]
    assert {path.name for path in files if re.search(rb"^[^#\n]*\bflock\b", path.read_bytes(), re.M)} == set(PROGRAMS)
    assert re.search(r"^RuntimeMaxSec=", (ROOT / "units/solo5-thaw@.service").read_text(), re.M)


def test_a_lock_that_another_has_is_an_error_after_the_timeout(tmp_path: Path) -> None:
    path = tmp_path / "run" / "lock"
    with closing(lock_file(path)):
        assert path.parent.stat().st_mode & 0o777 == 0o700
        begun = time.monotonic()
        with pytest.raises(LockedError, match=f"{path} is locked by another process: .* within 0.2 s. `lslocks`"):
            lock_file(path, timeout_s=0.2)
        assert 0.2 <= time.monotonic() - begun < 5
    os.close(lock_file(path))


def test_several_have_it_shared(tmp_path: Path) -> None:
    one, two = (lock_directory(tmp_path, shared=True) for _ in range(2))
    with closing(one), closing(two), pytest.raises(LockedError):
        lock_directory(tmp_path, timeout_s=0.0)


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o720, 0o604])
def test_what_others_can_open_is_not_locked(tmp_path: Path, mode: int) -> None:
    directory = tmp_path / "open"
    directory.mkdir(mode=0o700)
    directory.chmod(mode)
    with pytest.raises(HostError, match=f"{directory} can be opened by other users.*chmod go-rw {directory}"):
        lock_directory(directory)
    descriptor = os.open(directory, os.O_RDONLY)
    with closing(descriptor):
        assert not try_lock(descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # it was not locked


def test_what_another_user_owns_is_not_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    with pytest.raises(HostError, match="can be opened by other users"):
        lock_directory(tmp_path)


async def test_the_thread_of_an_event_loop_does_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "lock", LOCK)
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("the event loop waits"))
    with closing(lock_file(tmp_path / "lock")), pytest.raises(LockedError):
        lock_file(tmp_path / "lock")


async def test_a_thread_without_an_event_loop_of_its_own_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = lock_file(tmp_path / "lock", timeout_s=0.0)
    attempts: Queue[float] = Queue()
    monkeypatch.setattr(time, "sleep", attempts.put)
    waiting = asyncio.ensure_future(asyncio.to_thread(lock_file, tmp_path / "lock"))
    assert await asyncio.to_thread(attempts.get) == locks.INTERVAL_S
    assert not waiting.done()
    os.close(held)
    os.close(await waiting)


LOCK = lock
"""As it is, without the check of tests/fast/conftest.py."""
