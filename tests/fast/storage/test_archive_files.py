"""Files that become an archive, read within their roots; and archives that are older than their files."""

import errno
import hashlib
import os
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fast.storage.conftest import Running, disk_of
from tests.support.fakes.kernel import failing

from solo5_systemd.base import paths
from solo5_systemd.base.decode import Fields
from solo5_systemd.base.errors import HostError, InvalidRequestError, NotFoundError
from solo5_systemd.base.names import DeviceName
from solo5_systemd.base.paths import Way
from solo5_systemd.settings.node_limits import OPERATOR
from solo5_systemd.settings.records import document, record
from solo5_systemd.storage import archive_files
from solo5_systemd.storage.archive import archive_disk, member, size_of
from solo5_systemd.storage.archive_files import outdated, scan, tar_info, write_archive
from solo5_systemd.storage.backing_files import ImageFiles
from solo5_systemd.storage.locks import records_of_tasks
from solo5_systemd.storage.model import ArchiveFormat, ArchiveRequest, Backing, Disk, DiskRequest

DISK = DeviceName("config")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "conf" / "sub").mkdir(parents=True)
    (tmp_path / "conf" / "b.toml").write_text("port = 80\n")
    (tmp_path / "conf" / "sub" / "key").write_bytes(os.urandom(600_000))
    (tmp_path / "conf" / "a").touch()
    return tmp_path / "conf"


def request(*paths: Path, roots: tuple[str, ...] = (), format: ArchiveFormat = ArchiveFormat.TAR) -> DiskRequest:  # noqa: A002
    members = tuple(member(path.name, str(path)) for path in paths)
    return archive_disk(DISK, ArchiveRequest(members=members, format=format), roots=roots)


def written(wanted: DiskRequest, target: Path) -> str:
    with target.open("w+b") as file:
        return write_archive(wanted, file.fileno())


def test_a_disk_of_another_job_that_was_moved_here_is_no_file(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getxattr", lambda path, _: f"{Path(path).stat().st_ino} job default/web".encode())
    wanted = request(files, roots=(str(files),))
    assert scan(replace(wanted, holder="job default/web"))
    with pytest.raises(InvalidRequestError, match="is a disk of another job or volume, which was moved"):
        scan(replace(wanted, holder="job default/api"))


def test_the_same_files_are_the_same_bytes(files: Path, tmp_path: Path) -> None:
    wanted = request(files)
    digest = written(wanted, tmp_path / "one")
    os.utime(files / "b.toml", (5, 5))
    (files / "b.toml").chmod(0o600)
    assert written(wanted, tmp_path / "two") == digest == hashlib.sha256((tmp_path / "one").read_bytes()).hexdigest()
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    with tarfile.open(tmp_path / "one") as archive:
        assert archive.getnames() == ["conf", "conf/a", "conf/b.toml", "conf/sub", "conf/sub/key"]
        key = archive.extractfile("conf/sub/key")
        assert key is not None
        assert key.read() == (files / "sub" / "key").read_bytes()
    entries = scan(wanted)
    assert [entry.name for entry in entries] == ["conf", "conf/a", "conf/b.toml", "conf/sub", "conf/sub/key"]
    assert (tmp_path / "one").stat().st_size == size_of(wanted, [each.size for each in entries]), (
        "not whole records of tar"
    )


@pytest.mark.parametrize(
    ("below", "names"), [(".", ["a", "b.toml", "sub", "sub/key"]), ("sub", ["key"]), ("b.toml", ["b.toml"])]
)
def test_names_without_the_path(files: Path, tmp_path: Path, below: str, names: list[str]) -> None:
    path = str((files / below).resolve())
    excluded = (f"{path}/a",) if below == "." else ()
    wanted = archive_disk(DISK, ArchiveRequest(members=(member(path, path, strip=True),), excluded=excluded))
    assert record(DiskRequest, Fields(document(wanted))) == wanted
    written(wanted, tmp_path / "stripped")
    with tarfile.open(tmp_path / "stripped") as archive:
        assert archive.getnames() == [name for name in names if name != "a"]


@pytest.mark.parametrize("names", [("sub",), ("a",), ("a", "b.toml")])
def test_raw_is_one_file_that_is_not_empty(files: Path, tmp_path: Path, names: tuple[str, ...]) -> None:
    wanted = request(*(files / name for name in names), format=ArchiveFormat.RAW)
    for act in (lambda: scan(wanted), lambda: written(wanted, tmp_path / "raw")):
        with pytest.raises(InvalidRequestError, match="expected one file that is not empty"):
            act()


def test_links_are_followed_nowhere_below_a_root(files: Path, tmp_path: Path) -> None:
    roots = (str(files),)
    (files / "link").symlink_to("sub")
    (files / "sub" / "up").symlink_to("../b.toml")
    (tmp_path / "outside").write_text("secret")
    assert len(scan(request(files / "sub" / "key", roots=roots))) == 1
    for path, words in (
        (files / "link" / "key", "cannot be used: expected a file below"),
        (files / "link", "cannot be used: expected a file below"),
        (files / "sub" / "up", "cannot be used: expected a file below"),
        (files / "sub", "is a symbolic link: expected files and directories only"),
        (tmp_path / "outside", "cannot be used: expected a file below"),
        (files / "none", "cannot be used: expected a file below"),
        (files / ".." / "outside", "cannot be used: expected a file below"),
        (files / "a" / "b", "cannot be used: expected a file below"),
    ):
        with pytest.raises(InvalidRequestError, match=words):
            scan(request(path, roots=roots))


def test_a_root_that_became_a_link_is_not_followed(files: Path, tmp_path: Path) -> None:
    """`local` is in the task's directory, which every user may write."""
    victim = tmp_path / "victim"
    files.rename(victim)
    files.symlink_to(victim)
    for path in (files / "sub", files):
        with pytest.raises(InvalidRequestError, match="cannot be used: expected a file below"):
            scan(request(path, roots=(str(files),)))


def test_without_roots_no_link_is_followed_that_another_user_can_change(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "_TRUSTED", {0, os.getuid()})
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    theirs.chmod(0o777)
    (theirs / "app").symlink_to(files)
    wanted = request(theirs / "app" / "b.toml")
    with pytest.raises(InvalidRequestError, match="behind a symbolic link that a user other than root can") as caught:
        scan(wanted)
    assert f"{files}/b.toml" in caught.value.hint
    theirs.chmod(0o755)
    assert len(scan(wanted)) == 1


def test_what_others_may_put_there_is_theirs_or_readable_for_all(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user could move a file there that only root can read."""
    monkeypatch.setattr(paths, "_TRUSTED", {0, os.getuid()})
    wanted = request(files)
    (files / "sub" / "key").chmod(0o600)
    assert len(scan(wanted)) == 5
    (files / "sub").chmod(0o777)
    with pytest.raises(InvalidRequestError, match="sub/key' is a file of user .* that not every user may read"):
        scan(wanted)
    (files / "sub" / "key").chmod(0o644)
    assert len(scan(wanted)) == 5
    (files / "sub" / "key").chmod(0o600)
    own = Way(place=files / "sub", changers=frozenset({os.getuid()}))
    monkeypatch.setattr(archive_files, "way_of", lambda _: own)
    monkeypatch.setattr(archive_files, "changers_in", lambda _: set())
    wanted = request(files / "sub" / "key")
    assert len(scan(wanted)) == 1


def test_a_directory_that_was_replaced_since_it_was_opened_is_refused(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_files, "way_of", lambda _: Way(place=tmp_path, changers=frozenset()))
    with pytest.raises(InvalidRequestError, match="is behind a symbolic link"):
        scan(request(files / "b.toml"))


def test_without_roots_the_directory_may_be_reached_by_links(files: Path, tmp_path: Path) -> None:
    (tmp_path / "way").symlink_to(files)
    assert len(scan(request(tmp_path / "way" / "b.toml"))) == 1
    for path, error in ((tmp_path / "way", InvalidRequestError), (tmp_path / "none" / "x", NotFoundError)):
        with pytest.raises(error):
            scan(request(path))
    with pytest.raises(NotFoundError, match="does not exist"):
        scan(request(tmp_path / "none"))


def test_excluded_paths_are_left_out_of_directories_only(files: Path, tmp_path: Path) -> None:
    (files / "other").mkdir()
    for path in (files / "sub" / "fifo", files / "other" / "fifo"):
        os.mkfifo(path)

    def without(*paths: Path, excluded: Path) -> DiskRequest:
        archive = request(*paths).archive
        assert archive is not None
        return archive_disk(DISK, replace(archive, excluded=(str(excluded),)))

    good = without(files / "sub", tmp_path, excluded=files / "sub" / "fifo")
    (files / "other" / "fifo").unlink()
    names = [entry.name for entry in scan(good)]
    assert {"sub", "sub/key"} < set(names)
    assert f"{tmp_path.name}/conf/sub/key" in names
    assert not [name for name in names if "fifo" in name]
    assert record(DiskRequest, Fields(document(good))) == good
    for bad in (
        without(files / "sub", excluded=files / "sub" / "fif"),
        without(files / "sub", excluded=tmp_path / "fifo"),
        without(files / "sub" / "fifo", excluded=files / "sub" / "fifo"),
    ):
        with pytest.raises(InvalidRequestError, match="is a FIFO"):
            scan(bad)


def test_an_entry_has_no_time_and_owner_and_a_name_that_fits() -> None:
    directory, file = tar_info("a", is_directory=True), tar_info("a/" + "d" * 120 + "/ä", 3)
    assert (directory.isdir(), directory.mode, file.isfile(), file.mode, file.size) == (True, 0o755, True, 0o644, 3)
    assert {(each.mtime, each.uid, each.gid, each.uname) for each in (directory, file)} == {(0, 0, 0, "")}
    with pytest.raises(InvalidRequestError, match="is too long a name for a tar archive"):
        tar_info("x" * 101)


@pytest.mark.parametrize("change", [b"port = 81\n", b"longer than it was", b""])
def test_a_file_that_changes_while_it_is_read_is_refused(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: bytes
) -> None:
    def changing(name: str, *more: int, is_directory: bool = False) -> tarfile.TarInfo:
        if name.endswith("b.toml"):
            (files / "b.toml").write_bytes(change)
            os.utime(files / "b.toml")
        return tar_info(name, *more, is_directory=is_directory)

    monkeypatch.setattr(archive_files, "tar_info", changing)
    with pytest.raises(HostError, match="b.toml' has changed while it was read"):
        written(request(files), tmp_path / "out")


def test_errors_of_the_file_system_are_sentences(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, words in (("scandir", "its files cannot be read: Input/output"), ("open", "Input/output error")):
        wanted = request(files)
        with monkeypatch.context() as patched:
            patched.setattr(os, name, failing(errno.EIO))
            with pytest.raises(HostError, match=words):
                scan(wanted)


async def test_a_file_system_without_room_is_reported(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tarfile.TarFile, "addfile", failing(errno.ENOSPC))
    disks = ImageFiles()
    planned = await disks.inspect(request(files), OPERATOR)
    with pytest.raises(HostError, match="its archive cannot be written: No space left on device"):
        await disks.make(request(files), planned, OPERATOR)
    assert not list((tmp_path / "archives").iterdir())


def archived(tmp_path: Path, *requests: DiskRequest) -> list[Disk]:
    """Make the archives of a start."""
    made = []
    for wanted in requests:
        sha256 = written(wanted, tmp_path / wanted.disk)
        of_files = {"backing": Backing.ARCHIVE, "sha256": sha256, "sources": wanted}
        made.append(disk_of(tmp_path / wanted.disk, wanted.disk, **of_files))
    return made


def test_an_archive_is_older_while_its_files_have_another_content(
    files: Path, tmp_path: Path, running: Running
) -> None:
    file, roots = files / "b.toml", (str(files),)
    raw = replace(request(file, roots=roots, format=ArchiveFormat.RAW), disk=DeviceName("key"))
    running("web", *archived(tmp_path, request(files, roots=roots), raw))
    running("db", *archived(tmp_path, replace(request(file, roots=roots), disk=DeviceName("else"))))
    web, db = (records_of_tasks()[task] for task in ("web", "db"))
    assert outdated(web) == {"config": False, "key": False}
    file.write_text("port = 81\n")
    assert (outdated(web), outdated(db)) == ({"config": True, "key": True}, {"else": True})
    file.write_text("port = 80\n")
    assert outdated(web) == {"config": False, "key": False}, "the same content"
    (files / "new").touch()
    assert outdated(web) == {"config": True, "key": False}
    file.unlink()
    assert outdated(web) == {"config": True, "key": True}
    running.close()


async def test_a_credential_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_files, "CREDENTIALS", (tmp_path,))
    (tmp_path / "web").write_text("secret")
    disks, wanted = ImageFiles(), archive_disk(DISK, ArchiveRequest(credential="web", format=ArchiveFormat.RAW))
    made, _ = await disks.make(wanted, await disks.inspect(wanted, OPERATOR), OPERATOR)
    await disks.release([made])
    assert (made.backing, made.sources) == (Backing.ARCHIVE, None)
