"""What a disk may take that is made or grows: of the quotas of directories, and of the limits of its namespace.

A quota limits the sum of the sizes of all files below a directory, whoever has written them.

    /var/lib/solo5/claims/DIGEST    a symbolic link; its target has path, inode and claim of a file, as JSON

The directory is locked (flock(2)) while a file is made. The claim is there before the file is, with inode 0 for any, so
that no file is made that could not be recorded, also if the process is killed. What a sparse file has not allocated yet
is promised: nothing else may take it of the file system.
"""

import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from solo5_systemd.base.errors import HostError
from solo5_systemd.base.locks import closing, lock_directory
from solo5_systemd.base.names import hash_of
from solo5_systemd.base.paths import existing, identity, is_below, mount_point_of
from solo5_systemd.settings.node_limits import OPERATOR, Claim, Node, Resource, Space, Tenant, Totals, check_space
from solo5_systemd.settings.solo5_toml import Settings
from solo5_systemd.storage.block_devices import btrfs_of
from solo5_systemd.storage.model import NAMED_DISKS, SNAPSHOTS

CLAIMS = Path("/var/lib/solo5/claims")
STATE = Path("/var/lib/solo5")

_UNCOUNTED = f"{NAMED_DISKS}/{SNAPSHOTS}"
"""Snapshots share the blocks of their disks, and are made by root only."""


class _Disk(NamedTuple):
    """A disk that was created; `unwritten`: the bytes that it has not allocated."""

    claim: Claim
    unwritten: int


class DiskClaims:
    """The disks that jobs and volumes have created, and what limits new ones; the operator's have quotas alone.

    Args:
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
        _check_quotas(self._quotas(path, more), more, what)
        if self._is_limited(path, tenant):
            self._check(path, more, tenant, what, self._others(prune=False))

    def check_reserve(self, directory: Path, size: int, what: str) -> None:
        """Check that blocks for a disk of the operator's leave the reserve of the file system; raises HostError."""
        check_space(self._settings().limits, space_of(directory), size, what, str(directory))

    @contextmanager
    def admitted(
        self, path: str, size: int, more: int, what: str, tenant: Tenant = OPERATOR, *, new: int = -1
    ) -> Iterator[None]:
        """Check a file that the block creates or makes larger, and record it; root's change leaves it its job's.

        Args:
            path: without symbolic links.
            size: bytes after the block.
            more: those of them that are new.
            new: descriptor of the file, which may have a name in the directory already; -1: none.

        Raises:
            InvalidRequestError, TakenError, HostError: a limit would be exceeded, or the claims cannot be used.
        """
        quotas, is_limited = self._quotas(path, more), self._is_limited(path, tenant)
        held = None if is_limited else _read(self._link(path), "")
        if not quotas and not is_limited and held is None:  # no lock where nothing is to be counted
            yield
            return
        CLAIMS.mkdir(mode=0o700, parents=True, exist_ok=True)
        with closing(lock_directory(CLAIMS)):
            _check_quotas(quotas, more, what, new=new)
            if held is not None:
                tenant = held.claim.tenant
            elif not is_limited:  # quotas count files, and need no record
                yield
                return
            elif more > 0:
                self._check(path, more, tenant, what, self._others(prune=True))
            self._record(path, 0, size, tenant)
            try:
                yield
            finally:
                try:
                    status = os.lstat(path)  # as before if the block has failed
                    self._record(path, status.st_ino, status.st_size, tenant)
                except FileNotFoundError:  # it failed, or another user of its directory has removed it already
                    self._link(path).unlink(missing_ok=True)

    def unwritten(self, path: Path) -> int:
        """Return what the disks in the file system of a path have not allocated; others may hang, and are not read."""
        return sum(disk.unwritten for disk in self._others(prune=False, only=_key(str(path))))

    def _quotas(self, path: str, more: int) -> Mapping[str, int]:
        """Return the quotas (bytes, by directory) of a file that becomes larger; a symbolic link is followed."""
        resolved = os.path.realpath(path)
        found = self._settings().disk_quotas if more > 0 else {}
        return {directory: most for directory, most in found.items() if is_below(resolved, (directory,))}

    def _is_limited(self, path: str, tenant: Tenant) -> bool:
        return tenant != OPERATOR and _device(Path(path).parent) in map(_device, self._own)

    def _check(self, path: str, more: int, tenant: Tenant, what: str, others: Sequence[_Disk]) -> None:
        key, space, limits = _key(path), space_of(Path(path)), self._settings().limits
        claim = Claim(tenant=tenant, amounts={key: more})
        node = Node(limits=limits, capacity=lambda: {key: space.size})
        node.check(claim, lambda: Totals(each.claim for each in others), what)
        promised = sum(each.unwritten for each in others if key in each.claim.amounts)
        if _device(Path(path).parent) == _device(STATE):  # the file system of private copies
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

    def _record(self, path: str, inode: int, size: int, tenant: Tenant) -> None:
        claim = Claim(tenant=tenant, amounts={_key(path): size})
        new = CLAIMS / "new"
        new.unlink(missing_ok=True)
        new.symlink_to(json.dumps([path, inode, claim.to_text()]))
        new.replace(self._link(path))

    def _link(self, path: str) -> Path:
        return CLAIMS / hash_of(path, 32)


def _read(link: Path, only: str) -> _Disk | None:
    """Return the disk of a claim; None: its file is gone, the claim is damaged, or it is of no resource `only`."""
    try:
        path, inode, text = json.loads(os.readlink(link))  # noqa: PTH115 - a path would lose a slash of two
        claim = Claim.from_text(text)
        if only and only not in claim.amounts:  # before lstat(2), which may hang
            return None
        status = os.lstat(path)
    except (OSError, ValueError, TypeError):
        return None
    return _Disk(claim, max(0, status.st_size - status.st_blocks * 512)) if inode in (0, status.st_ino) else None


def space_of(path: Path) -> Space:
    """Return the file system that a path is in, or would be in."""
    status = os.statvfs(existing(path))
    return Space(size=status.f_blocks * status.f_frsize, free=status.f_bavail * status.f_frsize)


def _device(directory: Path) -> int | str:
    """Return the device of a directory, since files of overlayfs have others; of a Btrfs, its UUID.

    Each subvolume of a Btrfs has a device number, and all have one space.
    """
    with closing(os.open(existing(directory), os.O_PATH | os.O_CLOEXEC)) as place:
        return btrfs_of(place) or os.fstat(place).st_dev


def _key(path: str) -> str:
    """Return the resource of disks in the file system of a path."""
    return f"{Resource.DISKS}/{mount_point_of(str(existing(Path(path)).resolve())) or '/'}"


def _check_quotas(quotas: Mapping[str, int], more: int, what: str, *, new: int = -1) -> None:
    for directory, most in quotas.items():
        has = used(directory, None if new < 0 else identity(os.fstat(new)))
        if has + more > most:
            raise HostError(
                f"{what} would take {more} bytes: expected at most {max(most - has, 0)}, since the quota of "
                f"{directory} is {most} bytes and the files in it have {has}.",
                "Delete disks or volumes that are not needed; the operator sets disk_quota_mb in solo5.toml(5).",
            )


def used(directory: str, but: tuple[int, int] | None = None) -> int:
    """Return the bytes of all regular files below a directory, each once; what vanishes meanwhile does not count.

    The larger of size and allocated blocks counts; not that of file `but`. Symbolic links are not followed.
    """
    total, seen, uncounted = 0, {but}, os.path.realpath(_UNCOUNTED)
    places: list[tuple[str, tuple[int, int] | None]] = [(os.path.realpath(directory), None)]
    while places:  # no recursion: others may have nested directories
        place, expected = places.pop()
        with suppress(OSError), _listed(place, expected) as entries:
            for entry in entries:
                with suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    path = f"{place}/{entry.name}"
                    if stat.S_ISDIR(status.st_mode) and path != uncounted:
                        places.append((path, identity(status)))
                    elif stat.S_ISREG(status.st_mode) and identity(status) not in seen:
                        seen.add(identity(status))
                        total += max(status.st_size, status.st_blocks * 512)
    return total


@contextmanager
def _listed(place: str, expected: tuple[int, int] | None) -> Iterator[Iterator["os.DirEntry[str]"]]:
    """Yield the entries of a directory; of none in its place, such as by a link that another user has put there."""
    with closing(os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)) as descriptor:
        if expected is not None and identity(os.fstat(descriptor)) != expected:
            yield iter(())
            return
        with os.scandir(descriptor) as entries:
            yield entries
