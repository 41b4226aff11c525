"""Things that take long to make, kept outside the checkout under a hash of what they are made of."""

import fcntl
import hashlib
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

UNUSED_DAYS = 14  # after that an entry that nothing asked for is removed
KEPT_PER_NAME = 3
KEPT_HOURS = 1  # after the last use: several checkouts at work have an entry each, and need it for what they make next


def directory() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "solo5-systemd"


def digest(*parts: str | bytes) -> str:
    """Return a short hash over *parts*, each with its length, so that no two lists look alike."""
    hashed = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        hashed.update(len(data).to_bytes(8, "big") + data)
    return hashed.hexdigest()[:20]


def file_digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def entry(name: str, key: str, make: Callable[[Path], None]) -> Path:
    """Return the entry *name*-*key*, made by *make* in a directory of its own if it is not there yet.

    An entry appears whole or not at all, and is made once however many ask for it at the same time; meanwhile others of
    the same name can be made.
    """
    root = directory()
    root.mkdir(parents=True, exist_ok=True)
    final = root / f"{name}-{key}"
    with _locked(root / f".{final.name}.lock"):
        if not _found(root, name, final):
            _make(final, make)
            with _locked(root / f".{name}.lock"):
                _prune(root, name, final)
    return final


def _found(root: Path, name: str, final: Path) -> bool:
    """Return whether *final* is there, and note that it is needed before anything can prune it."""
    with _locked(root / f".{name}.lock"):
        if there := final.exists():
            os.utime(final)
    return there


def identity(made: Path) -> str:
    """Return a name for this very making of an entry.

    What is derived from an entry byte by byte, as a snapshot is from a disk, must not meet another making of it: two
    of the same key hold the same files, but neither the same disk blocks nor, days apart, the same Debian packages.
    """
    return _identity_file(made).read_text()


def _identity_file(made: Path) -> Path:
    return made.with_name(f".{made.name}.id")


@contextmanager
def in_use(*entries: Path) -> Iterator[None]:
    """Keep *entries* from being pruned by another process meanwhile."""
    held = [os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) for path in entries]
    try:
        for handle in held:
            fcntl.flock(handle, fcntl.LOCK_SH)
        yield
    finally:
        for handle in held:
            os.close(handle)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make(final: Path, make: Callable[[Path], None]) -> None:
    partial = final.with_name(f".{final.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        make(partial)
        _identity_file(final).write_text(uuid.uuid4().hex)
        partial.rename(final)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _prune(root: Path, name: str, keep: Path) -> None:
    used = {path: _last_use(path) for path in root.glob(f"{name}-*")}
    now = time.time()
    oldest, recent = now - UNUSED_DAYS * 86400, now - KEPT_HOURS * 3600
    for rank, path in enumerate(sorted(used, key=lambda path: used[path], reverse=True)):
        if path != keep and used[path] < (recent if rank >= KEPT_PER_NAME else oldest):
            _remove_unless_in_use(path)


def _last_use(path: Path) -> float:
    """Return the time of an entry's last use; 0 if another `boot` is removing it."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _remove_unless_in_use(path: Path) -> None:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    else:
        shutil.rmtree(path)
        _identity_file(path).unlink(missing_ok=True)
    finally:
        os.close(handle)
