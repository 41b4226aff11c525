"""The C library, and by it mount(2) and umount2(2)."""

import ctypes
import os
from functools import cache

_MS_BIND = 0x1000  # linux/mount.h
_NOSUID_NODEV_NOEXEC = 0x2 | 0x4 | 0x8
_DETACH_NOFOLLOW = 0x2 | 0x8  # MNT_DETACH, UMOUNT_NOFOLLOW


def bind_mount(source: str, target: str) -> None:
    """Bind a path to another one.

    Raises:
        OSError: of mount(2).
    """
    checked(libc().mount(os.fsencode(source), os.fsencode(target), None, ctypes.c_ulong(_MS_BIND), None))


def mount_memory(target: str, size: int | None = None) -> None:
    """Mount an empty file system in memory, closed to other users than root.

    Args:
        size: None: a ramfs, whose files are never in swap; else the bytes of a tmpfs, for a few files.

    Raises:
        OSError: of mount(2).
    """
    kind, options = (b"ramfs", "mode=0700") if size is None else (b"tmpfs", f"size={size},nr_inodes=4,mode=0700")
    flags = ctypes.c_ulong(_NOSUID_NODEV_NOEXEC)
    checked(libc().mount(b"solo5", os.fsencode(target), kind, flags, options.encode()))


def detach(target: str) -> None:
    """Unmount a path; what is open or mounted elsewhere stays.

    Raises:
        OSError: of umount2(2).
    """
    checked(libc().umount2(os.fsencode(target), _DETACH_NOFOLLOW))


@cache
def libc() -> ctypes.CDLL:
    """Return the C library, whose calls set `ctypes.get_errno`."""
    return ctypes.CDLL(None, use_errno=True)


def checked(result: int) -> int:
    """Return the result of a call of the C library; raise OSError for a negative one."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
