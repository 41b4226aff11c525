"""Disk requests and checked disks: what is behind a disk, with the rules of tenders for it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.base.names import DeviceName, DiskName
from solo5_systemd.storage.io_limits import NO_IO_LIMITS, IoLimits

SECTOR_SIZE = 512
"""Default sector size in bytes, as in the tenders."""

MAX_SECTOR_SIZE = 32768
"""Bytes; the tenders store it in 16 bits."""

VOLUME_IMAGE = "disk.img"
"""The disk image in a volume of Nomad: what solo5-disk creates, and the default of `file` in a job's `block`."""

NAMED_DISKS = "/var/lib/solo5/disks"
"""The directory of named disks; a file there has the name of its disk."""

COPIES = "/var/lib/solo5/copies"
"""The directory of private copies during the start of their task."""

SNAPSHOTS = ".snapshots"
"""The directory of the snapshots of named disks, in theirs."""


class Backing(StrEnum):
    """What is behind a disk, as `solo5ctl inspect` shows it."""

    FILE = "file"
    DEVICE = "block device"
    NAMED = "named disk"
    COPY = "private copy"
    ARCHIVE = "archive"


PRIVATE = (Backing.COPY, Backing.ARCHIVE)
"""What exists for one run only, and ends with it."""


class ArchiveFormat(StrEnum):
    """The format of an archive."""

    TAR = "tar"
    RAW = "raw"


@dataclass(frozen=True, kw_only=True)
class ArchiveRequest:
    """An archive of files, as the content of a disk.

    Attributes:
        members: files, and directories with all that is in them; below the roots of the disk's request. Each has its
            name in the archive (empty: what is in the directory, or the file by the last part of its path), and its
            path on the host, absolute.
        excluded: paths on the host, absolute, that are left out of a member's directory.
        format: TAR: POSIX ustar; RAW: the content of one file, with zeros up to the end of a sector.
        credential: name of a system credential (systemd.exec(5)), the one member; empty: none.
    """

    members: tuple[tuple[str, str], ...] = ()
    excluded: tuple[str, ...] = ()
    format: ArchiveFormat = ArchiveFormat.TAR
    credential: str = ""


@dataclass(frozen=True, kw_only=True)
class DiskRequest:
    """A BLOCK_BASIC device of a manifest, and the file or block device for it.

    Attributes:
        path: of the file or device node, in the caller's mount namespace.
        sector_size: in bytes.
        roots: directories, of which one must contain the path with symbolic links resolved; empty: no restriction.
        allocation: those of the roots with the files of the task's allocation, or of its volume; a file there that
            root owns is given to the task's user. A volume may be a block device, which is `path` then.
        create: bytes of the sparse file to create if there is none; its directory exists, below one of the roots. None:
            create none.
        name: of the named disk; None: another file.
        private: the task gets a copy of the file for one run, so that the file is only read.
        archive: the content of the disk, instead of a path; None: none.
        holder: of the disks of the allocation, such as a job; empty: the volume that it is.
    """

    disk: DeviceName
    path: str
    sector_size: int = SECTOR_SIZE
    roots: tuple[str, ...] = ()
    allocation: tuple[str, ...] = ()
    create: int | None = None
    name: DiskName | None = None
    private: bool = False
    archive: ArchiveRequest | None = None
    io: IoLimits = NO_IO_LIMITS
    holder: str = ""

    def __post_init__(self) -> None:
        """Raise InvalidRequestError unless the sector size is a power of two within the tenders' range."""
        if not SECTOR_SIZE <= self.sector_size <= MAX_SECTOR_SIZE or self.sector_size.bit_count() != 1:
            raise InvalidRequestError(
                f"disk {self.disk}: sector size {self.sector_size} is not supported: "
                f"expected a power of two from {SECTOR_SIZE} to {MAX_SECTOR_SIZE}."
            )

    def __str__(self) -> str:
        return f"disk {self.disk}: {self.path!r}"


class GivenDisk(NamedTuple):
    """A given disk.

    Attributes:
        device: the number of its file system's device or of the block device (`Disk.identity`); may change at a boot.
        inode: 0 for a block device.
        filesystem: f_fsid of its file system, which a boot does not change on ext4 and Btrfs; on XFS, it is made of the
            number of the device. 0: unknown.
        mount: the mount point above its path, such as that of a volume; empty: the root directory, or unknown.
        owner: UID of its owner at rest; root of a disk with a title.
    """

    path: str
    device: int
    inode: int
    filesystem: int = 0
    mount: str = ""
    owner: int = 0

    @property
    def is_device(self) -> bool:
        """Whether the disk was a block device, whose owner is lost with its device node."""
        return not self.inode

    def is_same_file(self, other: "GivenDisk") -> bool:
        """Return whether two given disks are one file, perhaps by two paths; for a device, whose path may be any."""
        if self.is_device:
            return other.is_device and self.device == other.device
        same = self.filesystem == other.filesystem if self.filesystem else self.device == other.device
        return same and self.inode == other.inode


@dataclass(frozen=True, kw_only=True)
class Disk:
    """A checked disk.

    Attributes:
        path: of the file or device node, absolute, without symbolic links.
        identity: device and inode of a file, or device number and zero of a block device; equal for the same disk only.
            Zeros: the start has to make it first.
        device: major and minor number of a block device, None for a file.
        size: bytes of a file; 0: not known.
        copied: bytes that a start has to copy for a private copy, whose file system cannot share them.
        exposed: a user other than root may change what `path` resolves to, or the path has characters that a unit file
            cannot hold.
        source: path of the file that a private copy is of, or names of what an archive has; empty: none.
        sha256: of an archive, in hexadecimal digits; empty: not known.
        sources: the request of an archive of files, which can be read again; None for any other disk.
        io: the I/O limits on its last device.
        devices: the block devices under it by number, such as `254:0`, each on the next one, with the kernel's name,
            such as `vda`; empty: none, or not known.
        given: what is recorded before the disk is given to the task's user; None: nothing, since it is private.
        holder: gets a title to it (`owner.write_title`); empty: none.
    """

    disk: DeviceName
    path: str
    identity: tuple[int, int] = (0, 0)
    sector_size: int = SECTOR_SIZE
    device: tuple[int, int] | None = None
    size: int = 0
    copied: int = 0
    exposed: bool = False
    backing: Backing = Backing.FILE
    source: str = ""
    sha256: str = ""
    sources: DiskRequest | None = None
    io: IoLimits = NO_IO_LIMITS
    devices: Mapping[str, str] = field(default_factory=dict)
    given: GivenDisk | None = None
    holder: str = ""

    def __str__(self) -> str:
        return f"disk {self.disk}: {self.path!r}"

    @property
    def planned(self) -> bool:
        """Return whether the start has to make it first."""
        return self.identity == (0, 0)

    @property
    def is_private(self) -> bool:
        """Return whether the disk exists for one run only, and ends with it."""
        return self.backing in PRIVATE


@dataclass(frozen=True, kw_only=True)
class FailedDisk:
    """A disk of a task that is on a full file system, or has lost its block device.

    Attributes:
        path: of its file; of a private copy, that of the original; where the device node was.
        free: bytes that the full file system has for a task; None: the device is gone.
    """

    task: str
    disk: str
    path: str
    free: int | None = None


def named_disk(
    disk: DeviceName,
    name: DiskName,
    *,
    sector_size: int = SECTOR_SIZE,
    create: int | None = None,
    private: bool = False,
    directory: str = NAMED_DISKS,
) -> DiskRequest:
    """Return the request for a named disk; raises InvalidRequestError for one to be created and used as a copy only."""
    if create is not None and private:
        raise InvalidRequestError(
            f"disk {disk}: {name!r} is to be created, and used as a private copy only: expected one of both.",
            "A disk that is created stays; a private copy ends with the task.",
        )
    return DiskRequest(
        disk=disk,
        path=f"{directory}/{name}",
        sector_size=sector_size,
        roots=(directory,),
        allocation=(directory,),
        create=create,
        name=name,
        private=private,
    )


def check_size(what: str, size: int, sector: int = SECTOR_SIZE) -> None:
    """Check the size (bytes) of a disk; `what`: the disk, and its verb, such as `disk 'web' would have`.

    Raises:
        InvalidRequestError: zero, or not a multiple of the sector size.
    """
    if size <= 0 or size % sector:
        raise InvalidRequestError(f"{what} {size} bytes: expected one or more whole sectors of {sector}.")
