"""mount(2) and umount2(2), by the C library."""

import ctypes
import os

_MS_BIND = 0x1000  # linux/mount.h
_NOSUID_NODEV_NOEXEC = 0x2 | 0x4 | 0x8
_DETACH_NOFOLLOW = 0x2 | 0x8  # MNT_DETACH, UMOUNT_NOFOLLOW


def bind_mount(source: str, target: str) -> None:
    """Bind a path to another one.

    Raises:
        OSError: of mount(2).
    """
    _check(_libc().mount(os.fsencode(source), os.fsencode(target), None, ctypes.c_ulong(_MS_BIND), None))


def mount_memory(target: str, size: int | None = None) -> None:
    """Mount an empty file system in memory, closed to other users than root.

    Args:
        size: None: a ramfs, whose files are never in swap; else the bytes of a tmpfs, for a few files.

    Raises:
        OSError: of mount(2).
    """
    kind, options = (b"ramfs", "mode=0700") if size is None else (b"tmpfs", f"size={size},nr_inodes=4,mode=0700")
    flags = ctypes.c_ulong(_NOSUID_NODEV_NOEXEC)
    _check(_libc().mount(b"solo5", os.fsencode(target), kind, flags, options.encode()))


def detach(target: str) -> None:
    """Unmount a path; what is open or mounted elsewhere stays.

    Raises:
        OSError: of umount2(2).
    """
    _check(_libc().umount2(os.fsencode(target), _DETACH_NOFOLLOW))


def _check(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
