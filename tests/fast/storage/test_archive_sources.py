"""Archives that are older than their files: what is reported, once, and what it costs."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from solo5_systemd.errors import HostError
from solo5_systemd.files.removals import FirstChanges
from solo5_systemd.names import DeviceName, TaskName
from solo5_systemd.storage import archive_sources as module
from solo5_systemd.storage.archive import archive_disk, member
from solo5_systemd.storage.archive_files import Visit, digest_of, write_archive
from solo5_systemd.storage.archive_sources import ArchiveWatch, ArchiveWatchInThread, outdated
from solo5_systemd.storage.locks import lock
from solo5_systemd.storage.model import (
    SECTOR_SIZE,
    UNREADABLE,
    ArchiveChange,
    ArchiveFormat,
    ArchiveRequest,
    Backing,
    Disk,
    DiskRequest,
)


class Host:
    """A directory of lock files, one of an allocation, and extended attributes as a tmpfs has them for root."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.locks = directory / "locks"
        self.root = directory / "local"
        (self.root / "conf" / "sub").mkdir(parents=True)
        self.file = self.root / "conf" / "sub" / "app.toml"
        self.file.write_text("one\n")
        self.attributes: dict[int, bytes] = {}
        self.read: list[str] = []
        self._held: list[int] = []
        self._watches: list[ArchiveWatch] = []
        monkeypatch.setattr(os, "setxattr", self._setxattr)
        monkeypatch.setattr(os, "getxattr", self._getxattr)
        original = digest_of

        def counted(request: DiskRequest, archive: ArchiveRequest, visit: Visit) -> str:
            self.read.append(request.disk)
            return original(request, archive, visit)

        monkeypatch.setattr(module, "digest_of", counted)

    def _setxattr(self, path: Path, name: str, value: bytes) -> None:
        assert name == "trusted.solo5.reported"
        self.attributes[Path(path).stat().st_ino] = value

    def _getxattr(self, path: Path, name: str) -> bytes:
        assert name == "trusted.solo5.reported"
        try:
            return self.attributes[Path(path).stat().st_ino]
        except KeyError:
            raise OSError(61, "No data available") from None

    def request(self, *paths: str, disk: str = "config", format: ArchiveFormat = ArchiveFormat.TAR) -> DiskRequest:  # noqa: A002
        members = tuple(member(path, str(self.root / path)) for path in paths or ("conf",))
        archive = ArchiveRequest(members=members, format=format)
        return archive_disk(DeviceName(disk), archive, roots=(str(self.root),))

    def start(self, *requests: DiskRequest, task: str = "web") -> int:
        """Start a task with these archives: return the descriptor of its locks."""
        disks = []
        for number, request in enumerate(requests or (self.request(),)):
            path = self.root.parent / f"{task}-{number}-{len(self._held)}"
            assert request.archive is not None
            with path.open("w+b") as target:
                digest = write_archive(request, request.archive, target.fileno())
            status = path.stat()
            disks.append(
                Disk(
                    disk=request.disk, path=str(path), sector_size=SECTOR_SIZE, device=None,
                    identity=(status.st_dev, status.st_ino), backing=Backing.ARCHIVE, sha256=digest, sources=request,
                )
            )  # fmt: skip
        held = lock(disks, directory=self.locks, task=task)
        self._held.append(held)
        return held

    def end(self, held: int) -> None:
        self._held.remove(held)
        os.close(held)

    def watch(self) -> ArchiveWatch:
        """Return a watch, as a process has it."""
        self._watches.append(ArchiveWatch(self.locks))
        return self._watches[-1]

    def __enter__(self) -> "Host":
        return self

    def __exit__(self, *_: object) -> None:
        for watch in self._watches:
            watch.look(())
        for held in self._held:
            os.close(held)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)


@pytest.fixture
def watch(host: Host) -> ArchiveWatch:
    return host.watch()


def looks(watch: ArchiveWatch, *tasks: str, count: int = 2) -> list[tuple[str, str, bool]]:
    """Look as often as a change needs, report what is found, and return it."""
    found = []
    for _ in range(count):
        for change in watch.look(tasks or ("web",)):
            watch.reported(change)
            found.append((change.task, change.disk, change.outdated))
    return found


WEB = ("web", "config", True)


def test_each_change_is_reported_once_and_so_is_its_end(host: Host, watch: ArchiveWatch) -> None:
    with host:
        host.start()
        assert looks(watch) == []
        host.file.write_text("two\n")
        assert watch.look(("web",)) == [], "a task that is restarted because of it has ended by the next look"
        assert looks(watch) == [WEB]
        assert looks(watch, count=4) == []
        other = host.root / "new"
        other.write_text("three\n")
        other.rename(host.file)
        assert looks(watch) == [WEB]
        host.file.write_text("one\n")
        assert looks(watch) == [("web", "config", False)]
        host.file.write_text("one\n")
        assert looks(watch) == [], "the same content"


def test_files_that_do_not_change_are_read_once(host: Host, watch: ArchiveWatch) -> None:
    with host:
        for number in range(5):
            host.start(host.request("conf/sub/app.toml"), task=f"web{number}")
        tasks = [f"web{number}" for number in range(5)]
        assert looks(watch, *tasks, count=20) == []
        assert len(host.read) == 5
        (host.root / "conf" / "other").touch()
        looks(watch, *tasks)
        assert len(host.read) == 10, "each once more"


def test_a_watch_without_tasks_has_no_descriptor(host: Host, watch: ArchiveWatch) -> None:
    with host:
        before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
        held = host.start()
        looks(watch, "db")
        assert host.read == [], "the task of another caller"
        looks(watch)
        assert len(os.listdir("/proc/self/fd")) == before + 2  # noqa: PTH208
        host.end(held)
        looks(watch, "db")
        assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


@pytest.mark.parametrize("is_reported", [True, False])
def test_a_later_process_neither_repeats_nor_loses_a_change(host: Host, watch: ArchiveWatch, is_reported: bool) -> None:
    with host:
        host.start()
        looks(watch)
        host.file.write_text("two\n")
        if is_reported:
            assert looks(watch) == [WEB]
        watch.look(())
        later = host.watch()
        assert looks(later) == ([] if is_reported else [WEB])
        host.file.write_text("three\n")
        later.look(())
        last = host.watch()
        assert looks(last) == [WEB], "it changed while no process was there"


def test_two_archives_of_one_directory(host: Host, watch: ArchiveWatch) -> None:
    with host:
        raw = host.request("conf/sub/app.toml", disk="key", format=ArchiveFormat.RAW)
        host.start(host.request(), raw)
        host.start(host.request(disk="else"), task="db")
        assert looks(watch, "web", "db") == []
        host.file.write_text("two\n")
        found = [("db", "else", True), ("web", "config", True), ("web", "key", True)]
        assert sorted(looks(watch, "web", "db")) == found
        later = host.watch()
        assert looks(later, "web", "db") == []


def test_files_that_are_gone_are_a_state_and_so_is_their_return(host: Host, watch: ArchiveWatch) -> None:
    with host:
        host.start(host.request("conf/sub/app.toml"))
        looks(watch)
        (host.root / "conf").rename(host.root / "moved")
        changes = [each for _ in range(4) for each in watch.look(("web",))]
        assert changes == [ArchiveChange(task="web", disk="config", state=UNREADABLE, outdated=True)]
        assert outdated("web", host.locks) == {"config": True}
        (host.root / "moved").rename(host.root / "conf")
        assert looks(watch, count=3) == [("web", "config", False)]
        assert outdated("web", host.locks) == {"config": False}


def test_a_file_that_is_being_written_is_read_again(
    host: Host, watch: ArchiveWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    with host:
        host.start()
        looks(watch)
        read = digest_of

        def fails(*_: object) -> str:
            raise HostError("it has changed while it was read.")

        host.file.write_text("two\n")
        monkeypatch.setattr(module, "digest_of", fails)
        assert looks(watch) == []
        monkeypatch.setattr(module, "digest_of", read)
        assert looks(watch) == [WEB]


@pytest.mark.parametrize("limit", ["WATCHES_MAX", "WATCHES_OF_ARCHIVE_MAX", "inotify"])
def test_what_cannot_be_watched_is_read_in_each_look(
    host: Host, watch: ArchiveWatch, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    with host:
        if limit == "inotify":

            def fails(_self: object, _directory: int) -> int:
                raise OSError(28, "No space left on device")

            monkeypatch.setattr(FirstChanges, "watch", fails)
        else:
            monkeypatch.setattr(module, limit, 1)
        host.start()
        assert looks(watch, count=3) == []
        assert len(host.read) == 3
        host.file.write_text("two\n")
        assert looks(watch) == [WEB]


def test_a_look_has_an_end_and_the_next_one_goes_on(
    host: Host, watch: ArchiveWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    with host:
        for number in range(3):
            host.start(task=f"web{number}")
        monkeypatch.setattr(module, "LOOK_S", 0)
        tasks = [f"web{number}" for number in range(3)]
        assert looks(watch, *tasks) == []
        assert host.read == []
        monkeypatch.setattr(module, "LOOK_S", 60)
        assert looks(watch, *tasks) == []
        assert len(host.read) == 3


def test_the_lock_of_an_ended_run_is_none(host: Host, watch: ArchiveWatch) -> None:
    with host:
        host.end(host.start())
        assert looks(watch) == []
        assert host.read == []
        first = host.start()
        looks(watch)
        host.end(first)
        host.file.write_text("two\n")
        host.start()
        assert looks(watch) == [], "the next run has the new files"
        host.file.write_text("three\n")
        assert looks(watch) == [WEB]
        assert host.start(task="other")
        looks(watch)
        for name in host.locks.iterdir():
            name.unlink()
        assert looks(watch, "other") == []


def test_damaged_records_have_no_archive(host: Host, watch: ArchiveWatch) -> None:
    with host:
        host.start()
        [name] = host.locks.iterdir()
        good = json.loads(name.read_text())
        sources = good["archives"]["config"]
        damaged: list[dict[str, object]] = [
            {"archives": {"config": {**sources, "format": "zip"}}},
            {"archives": {"config": {**sources, "members": [1]}}},
            {"archives": {"config": {**sources, "members": []}}},
            {"archives": {"config": 1}},
            {"archives": 1},
            {"disks": 1},
            {"disks": [{"disk": "config"}]},
        ]
        for change in damaged:
            name.chmod(0o600)
            name.write_text(json.dumps({**good, **change}))
            assert outdated("web", host.locks) == {}
        name.write_text(json.dumps({**good, "archives": {"config": {**sources, "sector_size": 512}}}))
        assert outdated("web", host.locks) == {"config": False}
        host.attributes[name.stat().st_ino] = b"[]"
        assert looks(watch) == []
        assert outdated("none", host.locks) == {}


def test_only_archives_of_files_have_sources(host: Host) -> None:
    with host:
        credential = archive_disk(DeviceName("key"), ArchiveRequest(credential="web"))
        plain = Disk(
            disk=DeviceName("key"), path="/x", sector_size=512, device=None, identity=(1, 2), sources=credential
        )  # fmt: skip
        os.close(lock([plain], directory=host.locks, task="web"))
        os.close(lock([replace(plain, sources=None, identity=(1, 3))], directory=host.locks, task="db"))
        assert all("archives" not in json.loads(each.read_text()) for each in host.locks.iterdir())


async def test_locks_that_cannot_be_read_are_an_error(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    with host:
        monkeypatch.setattr(module, "LOCKS", host.file)
        threaded = ArchiveWatchInThread()
        threaded._watch = ArchiveWatch(host.file)
        with pytest.raises(HostError, match="cannot be read: Not a directory"):
            await threaded.changes([TaskName("web")])
        threaded._watch = host.watch()
        host.start()
        assert await threaded.changes([TaskName("web")]) == []
        await threaded.reported(ArchiveChange(task="web", disk="config", state="0", outdated=True))
        assert [*host.attributes.values()] == [b'{"config": "0"}']
        assert await threaded.changes([]) == []
