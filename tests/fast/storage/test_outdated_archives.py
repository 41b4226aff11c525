"""Archives that are older than their files."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fast.storage.conftest import disk_of

from solo5_systemd.base.errors import HostError
from solo5_systemd.base.names import DeviceName
from solo5_systemd.storage import locks
from solo5_systemd.storage.archive import archive_disk, member
from solo5_systemd.storage.archive_files import outdated, write_archive
from solo5_systemd.storage.locks import lock
from solo5_systemd.storage.model import ArchiveFormat, ArchiveRequest, Backing, Disk, DiskRequest


class Host:
    """A directory of lock files, and one of an allocation."""

    def __init__(self, directory: Path) -> None:
        self.locks = directory / "locks"
        self.root = directory / "local"
        (self.root / "conf" / "sub").mkdir(parents=True)
        self.file = self.root / "conf" / "sub" / "app.toml"
        self.file.write_text("one\n")
        self._held: list[int] = []

    def request(self, *paths: str, disk: str = "config", format: ArchiveFormat = ArchiveFormat.TAR) -> DiskRequest:  # noqa: A002
        members = tuple(member(path, str(self.root / path)) for path in paths or ("conf",))
        archive = ArchiveRequest(members=members, format=format)
        return archive_disk(DeviceName(disk), archive, roots=(str(self.root),))

    def start(self, *requests: DiskRequest, task: str = "web") -> None:
        """Lock the archives of a task that starts with them."""
        disks = []
        for number, request in enumerate(requests or (self.request(),)):
            path = self.root.parent / f"{task}-{number}-{len(self._held)}"
            assert request.archive is not None
            with path.open("w+b") as target:
                digest = write_archive(request, request.archive, target.fileno())
            disks.append(disk_of(path, request.disk, backing=Backing.ARCHIVE, sha256=digest, sources=request))
        self._held.append(lock(disks, task=task))

    def __enter__(self) -> "Host":
        return self

    def __exit__(self, *_: object) -> None:
        while self._held:
            os.close(self._held.pop())


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_an_archive_is_older_while_its_files_have_another_content(host: Host) -> None:
    with host:
        raw = host.request("conf/sub/app.toml", disk="key", format=ArchiveFormat.RAW)
        host.start(host.request(), raw)
        host.start(host.request("conf/sub/app.toml", disk="else"), task="db")
        assert outdated("web") == {"config": False, "key": False}
        host.file.write_text("two\n")
        assert outdated("web") == {"config": True, "key": True}
        assert outdated("db") == {"else": True}
        host.file.write_text("one\n")
        assert outdated("web") == {"config": False, "key": False}, "the same content"
        (host.root / "conf" / "new").touch()
        assert outdated("web") == {"config": True, "key": False}


def test_an_archive_whose_files_are_gone_is_older(host: Host) -> None:
    with host:
        host.start(host.request("conf/sub/app.toml"))
        (host.root / "conf").rename(host.root / "moved")
        assert outdated("web") == {"config": True}
        (host.root / "moved").rename(host.root / "conf")
        assert outdated("web") == {"config": False}


def test_a_task_that_has_ended_has_no_archive(host: Host) -> None:
    with host:
        host.start()
    assert outdated("web") == {}


def test_records_of_an_earlier_release_have_no_archive(host: Host) -> None:
    with host:
        host.start()
        [name] = host.locks.iterdir()
        name.chmod(0o600)
        name.write_text(json.dumps({**json.loads(name.read_text()), "archives": {"config": {}}}))
        assert outdated("web") == {}
        assert outdated("none") == {}


def test_only_archives_of_files_have_sources(host: Host) -> None:
    with host:
        credential = archive_disk(DeviceName("key"), ArchiveRequest(credential="web"))
        plain = Disk(
            disk=DeviceName("key"), path="/x", identity=(1, 2), sources=credential
        )  # fmt: skip
        os.close(lock([plain], task="web"))
        os.close(lock([replace(plain, sources=None, identity=(1, 3))], task="db"))
        assert all("archives" not in json.loads(each.read_text()) for each in host.locks.iterdir())


def test_locks_that_cannot_be_read_are_an_error(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "LOCKS", host.file)
    with pytest.raises(HostError, match="cannot be read: Not a directory"):
        outdated("web")
