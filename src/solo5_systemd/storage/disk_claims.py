"""What a disk may take that is made or grows: of the quotas of directories, and of the limits of its namespace.

Disks that jobs and volumes have created stay when their tasks have ended.

    /var/lib/solo5/claims/DIGEST    a symbolic link; its target has path, inode and claim of a file, as JSON

The directory is locked (flock(2)) while a file is made; only root can open it. A claim counts while its path has the
file. It is there before the file is, with inode 0 for any, so that no file is made that could not be recorded, also if
the process is killed. What a sparse file has not allocated yet is promised: nothing else may take it of the file
system.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from solo5_systemd.base.locks import closing, lock_directory
from solo5_systemd.base.procfs import existing, mount_point_of
from solo5_systemd.settings.node_limits import (
    OPERATOR,
    Claim,
    Node,
    Resource,
    Space,
    Tenant,
    Totals,
    check_space,
)
from solo5_systemd.settings.solo5_toml import Settings
from solo5_systemd.storage import quota
from solo5_systemd.storage.model import NAMED_DISKS

CLAIMS = Path("/var/lib/solo5/claims")
STATE = Path("/var/lib/solo5")


class _Disk(NamedTuple):
    """A disk that was created; `unwritten`: the bytes that it has not allocated."""

    claim: Claim
    unwritten: int


class DiskClaims:
    """The disks that jobs and volumes have created, and what limits new ones; the operator's have quotas alone.

    Args:
        settings: returns the limits of the node, and the quotas of directories.
        copies: returns the bytes that private copies of tasks can take of the file system of STATE.
        own: paths on the node's own file systems; others are volumes, which are given to jobs entirely.
    """

    def __init__(
        self,
        settings: Callable[[], Settings] = Settings,
        copies: Callable[[], int] = lambda: 0,
        own: Sequence[Path] = (Path("/"), STATE, Path(NAMED_DISKS)),
    ) -> None:
        self._settings = settings
        self._copies = copies
        self._own = own

    def check(self, path: str, more: int, what: str, tenant: Tenant = OPERATOR) -> None:
        """Check whether a tenant may create a file, or make it larger; nothing is recorded. Raises as `admitted`."""
        quota.check(quota.concerned(self._settings().disk_quotas, path, more), more, what)
        if self._is_limited(path, tenant):
            self._check(path, more, tenant, what, self._others(prune=False))

    def check_reserve(self, directory: Path, size: int, what: str) -> None:
        """Check that blocks for a disk of the operator's leave the reserve of the file system; raises HostError."""
        check_space(self._settings().limits, space_of(directory), size, what, str(directory))

    @contextmanager
    def admitted(
        self, path: str, size: int, more: int, what: str, tenant: Tenant = OPERATOR, *, new: int = -1
    ) -> Iterator[None]:
        """Check a file that the block creates or makes larger, and record it.

        Args:
            path: of the file, without symbolic links.
            size: its bytes after the block.
            more: those of them that are new.
            what: the file in an error, such as `disk web`.
            new: descriptor of the file, which may have a name in the directory already; -1: none.

        Raises:
            InvalidRequestError, TakenError, HostError: a limit would be exceeded, or the claims cannot be used.
        """
        quotas, is_limited = quota.concerned(self._settings().disk_quotas, path, more), self._is_limited(path, tenant)
        if not quotas and not is_limited:
            yield
            return
        with self._exclusive():
            quota.check(quotas, more, what, new=new)
            if not is_limited:
                yield
                return
            if more > 0:
                self._check(path, more, tenant, what, self._others(prune=True))
            self._record(path, 0, size, tenant)
            try:
                yield
            finally:
                self._settle(path, size, tenant)

    def unwritten(self, path: Path) -> int:
        """Return what the disks in the file system of a path have not allocated.

        Those of others are not looked at: they may hang.
        """
        return sum(disk.unwritten for disk in self._others(prune=False, only=_key(str(path))))

    def _is_limited(self, path: str, tenant: Tenant) -> bool:
        return tenant != OPERATOR and _device(Path(path).parent) in map(_device, self._own)

    def _check(self, path: str, more: int, tenant: Tenant, what: str, others: Sequence[_Disk]) -> None:
        key, space, limits = _key(path), space_of(Path(path)), self._settings().limits
        claim = Claim(tenant=tenant, amounts={key: more})
        Node(limits=limits, capacity={key: space.size}).check(claim, Totals(each.claim for each in others), what)
        promised = sum(each.unwritten for each in others if key in each.claim.amounts)
        if _device(Path(path).parent) == _device(STATE):
            promised += self._copies()
        check_space(limits, space, more, what, path, promised)

    def _others(self, *, prune: bool, only: str = "") -> Sequence[_Disk]:
        found = []
        with suppress(FileNotFoundError):
            for link in CLAIMS.iterdir():
                disk = _read(link, only)
                if disk is not None:
                    found.append(disk)
                elif prune:
                    link.unlink(missing_ok=True)
        return found

    def _settle(self, path: str, size: int, tenant: Tenant) -> None:
        """Record which file was made, or remove the claim if there is none."""
        try:
            self._record(path, os.lstat(path).st_ino, size, tenant)
        except FileNotFoundError:  # it failed, or another user of its directory has removed it already
            self._link(path).unlink(missing_ok=True)

    def _record(self, path: str, inode: int, size: int, tenant: Tenant) -> None:
        claim = Claim(tenant=tenant, amounts={_key(path): size})
        new = CLAIMS / "new"
        new.unlink(missing_ok=True)
        new.symlink_to(json.dumps([path, inode, claim.to_text()]))
        new.replace(self._link(path))

    def _link(self, path: str) -> Path:
        return CLAIMS / hashlib.sha256(os.fsencode(path)).hexdigest()[:32]

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        CLAIMS.mkdir(mode=0o700, parents=True, exist_ok=True)
        with closing(lock_directory(CLAIMS)):
            yield


def _read(link: Path, only: str) -> _Disk | None:
    """Return the disk of a claim; None: its file is gone, the claim is damaged, or it is of no resource `only`."""
    try:
        path, inode, text = json.loads(os.readlink(link))  # noqa: PTH115 - a path would lose a slash of two
        claim = Claim.from_text(text)
        if only and only not in claim.amounts:
            return None
        status = os.lstat(path)
    except (OSError, ValueError, TypeError):
        return None
    return _Disk(claim, max(0, status.st_size - status.st_blocks * 512)) if inode in (0, status.st_ino) else None


def space_of(path: Path) -> Space:
    """Return the file system that a path is in, or would be in."""
    status = os.statvfs(existing(path))
    return Space(size=status.f_blocks * status.f_frsize, free=status.f_bavail * status.f_frsize)


def _device(directory: Path) -> int:
    """Return the device of a directory; files of overlayfs have others."""
    return existing(directory).stat().st_dev


def _key(path: str) -> str:
    """Return the resource of disks in the file system of a path."""
    return f"{Resource.DISKS}/{mount_point_of(str(existing(Path(path)).resolve())) or '/'}"
