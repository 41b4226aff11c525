"""What holds for every test of storage."""

import os
import pwd
import stat
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from solo5_systemd.base import paths
from solo5_systemd.base.names import DeviceName
from solo5_systemd.settings.node_limits import Limits
from solo5_systemd.settings.solo5_toml import Settings
from solo5_systemd.storage import backing_files, bind_mounts, given_disks, new_file, quotas
from solo5_systemd.storage.locks import lock
from solo5_systemd.storage.model import Disk
from solo5_systemd.storage.named_disks import NamedDisks


def disk_of(path: Path, name: str = "storage", **more: Any) -> Disk:
    """The disk that a start finds in a file."""
    return Disk(disk=DeviceName(name), path=str(path), identity=paths.identity(path.stat()), **more)


class Sysfs:
    """Block devices as directories and symbolic links."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "dev/block").mkdir(parents=True)

    def device(self, name: str, number: str, *, of: str = "", slaves: tuple[str, ...] = ()) -> None:
        """Add a device; `of`: the disk of which it is a partition."""
        directory = self.root / "devices" / of / name
        directory.mkdir(parents=True)
        (directory / "dev").write_text(f"{number}\n")
        if of:
            (directory / "partition").write_text("1\n")
        (self.root / "dev/block" / number).symlink_to(directory)
        (directory / "slaves").mkdir()
        for slave in slaves:
            (directory / "slaves" / slave.rpartition("/")[2]).symlink_to(self.root / "devices" / slave)

    def loop(self, name: str, number: str, file: object = "") -> None:
        """Add a loop device; `file`: the path of what it is attached to."""
        self.device(name, number)
        directory = self.root / "devices" / name
        (directory / "ro").write_text("0\n")
        (directory / "loop").mkdir()
        (directory / "loop/backing_file").write_text(f"{file}\n")
        (self.root / "block").mkdir(exist_ok=True)
        (self.root / "block" / name).symlink_to(directory)


@pytest.fixture
def sysfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sysfs:
    """A disk vda with the partitions vda2 and vda3."""
    found = Sysfs(tmp_path / "sys")
    monkeypatch.setattr(paths, "SYS", found.root)
    monkeypatch.setattr(paths, "DEV", found.root / "nodes")
    found.device("vda", "254:0")
    found.device("vda2", "254:2", of="vda")
    found.device("vda3", "254:3", of="vda")
    return found


@pytest.fixture(autouse=True)
def mounts(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The records of mount points, which would be those of this host where the tests' files have a file system."""
    directory = tmp_path_factory.mktemp("state") / "mounts"
    monkeypatch.setattr(new_file, "MOUNTS", directory)
    return directory


@pytest.fixture(autouse=True)
def claimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(quotas, "CLAIMS", tmp_path / "claims")
    monkeypatch.setattr(bind_mounts, "PID1_ROOT", "")
    monkeypatch.setattr(given_disks, "GIVEN_DISKS", tmp_path / "given")
    for name, directory in (("BINDS", "run/disks"), ("COPIES", "copies"), ("MEMORY", "archives")):
        monkeypatch.setattr(backing_files, name, tmp_path / directory)
    monkeypatch.setattr(backing_files, "mount_memory", lambda _: None)
    return tmp_path / "claims"


def solo5_is(monkeypatch: pytest.MonkeyPatch, uid: int) -> None:
    """Have user solo5 this number, and no group of others."""
    entry = SimpleNamespace(pw_uid=uid, pw_gid=uid)
    monkeypatch.setattr(pwd, "getpwnam", {"solo5": entry}.__getitem__)
    monkeypatch.setattr(os, "getgrouplist", lambda _, group: [group])


@pytest.fixture(autouse=True)
def solo5(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user than the one that runs the tests stands for user solo5."""
    solo5_is(monkeypatch, 990)


def in_bytes(quotas: Mapping[str, int], limits: Limits | None = None) -> Callable[[], Settings]:
    """What returns settings with these quotas, which a settings file has in MiB."""
    return lambda: cast("Settings", SimpleNamespace(disk_quotas=quotas, limits=limits or Limits()))


class Device:
    """A block device 8:0 as lstat(2), fstat(2) and sysfs show it: a test without root can make no node."""

    def __init__(self, directory: Path, patch: pytest.MonkeyPatch) -> None:
        self.path = directory / "dev/sda"
        self.sys = directory / "sys"
        self.number = os.makedev(8, 0)
        patch.setattr(paths, "SYS", self.sys)
        self.size = self.sys / "dev/block/8:0/size"
        self.path.parent.mkdir()
        self.path.touch()
        self.size.parent.mkdir(parents=True)
        self.size.write_text("16384\n")
        (self.size.parent / "queue").mkdir()
        (self.size.parent / "queue/logical_block_size").write_text("4096\n")
        lstat, fstat = os.lstat, os.fstat
        node, inode = (
            SimpleNamespace(st_mode=stat.S_IFBLK | 0o600, st_rdev=self.number, st_size=0),
            self.path.stat().st_ino,
        )
        patch.setattr(os, "fstat", lambda file: node if fstat(file).st_ino == inode else fstat(file))
        patch.setattr(os, "lstat", lambda path: node if str(path) == str(self.path) and lstat(path) else lstat(path))

    def pull(self) -> None:
        """Remove it, as the kernel does."""
        self.path.unlink()
        self.size.unlink()


class Running(ExitStack):
    """Locks the disks of tasks until a test closes it."""

    def __call__(self, task: str, *disks: Disk) -> None:
        self.callback(os.close, lock(disks, task=task))


@pytest.fixture
def disks(tmp_path: Path) -> NamedDisks:
    """Named disks by a link: the operator may have put /var/lib/solo5 on a larger disk so."""
    (tmp_path / "link").symlink_to(tmp_path)
    return NamedDisks(tmp_path / "link/disks")


@pytest.fixture
def running() -> Running:
    return Running()


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Device:
    return Device(tmp_path, monkeypatch)
