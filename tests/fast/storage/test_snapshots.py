"""Snapshots of named disks. Reflinks are those of `file_copies.copy_data`, unless the file system below has its own."""

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.fast.storage.conftest import disk_of, in_bytes
from tests.support.fakes.kernel import failing

from solo5_systemd.base import file_copies
from solo5_systemd.base.atomic_file import link_unnamed
from solo5_systemd.base.errors import HostError, NotFoundError, TakenError
from solo5_systemd.base.names import DiskName, SnapshotName
from solo5_systemd.storage import snapshots
from solo5_systemd.storage.locks import lock
from solo5_systemd.storage.model import Backing
from solo5_systemd.storage.named_disks import NamedDisks
from solo5_systemd.storage.quotas import DiskClaims
from solo5_systemd.storage.snapshots import Snapshots

if TYPE_CHECKING:
    from collections.abc import Callable

DATA, LOGS = DiskName("data"), DiskName("logs")
ONE, TWO = SnapshotName("one"), SnapshotName("two")


@pytest.fixture
def subject(tmp_path: Path, disks: NamedDisks) -> Snapshots:
    disks.create(DATA, 1024)
    return Snapshots(disks)


def sharing(monkeypatch: pytest.MonkeyPatch, share: "Callable[[int, int], bool]") -> None:
    """Replace what shares blocks, and what finds out whether the file system can."""
    monkeypatch.setattr(snapshots, "share", share)
    monkeypatch.setattr(snapshots, "can_share", share)


@pytest.fixture(autouse=True)
def reflinks(monkeypatch: pytest.MonkeyPatch) -> None:
    def share(source: int, target: int) -> bool:
        file_copies.copy_data(source, target, os.fstat(source).st_size)
        return True

    sharing(monkeypatch, share)


@pytest.fixture
def no_reflinks(monkeypatch: pytest.MonkeyPatch) -> None:
    sharing(monkeypatch, lambda *_: False)


def write(tmp_path: Path, text: str, name: str = "data") -> None:
    with (tmp_path / "disks" / name).open("r+b") as file:
        file.write(text.encode())


def read(tmp_path: Path, name: str = "data") -> bytes:
    return (tmp_path / "disks" / name).read_bytes().rstrip(b"\0")


def hidden(tmp_path: Path) -> list[str]:
    return [path.name for path in (tmp_path / "disks").iterdir() if path.name.startswith(".")]


def test_an_export_that_fails_is_one_sentence(subject: Snapshots, no_reflinks: None) -> None:
    subject.take(DATA, ONE, copy=True)
    with pytest.raises(NotFoundError, match="disk 'data' has no snapshot 'two'"):
        subject.export(DATA, TWO, -1)
    with Path("/dev/full").open("wb") as full, pytest.raises(HostError, match="data@one cannot be exported: No space"):
        subject.export(DATA, ONE, full.fileno())


def test_what_is_no_snapshot_is_none(subject: Snapshots, tmp_path: Path) -> None:
    place = tmp_path / "disks/.snapshots/data"
    place.mkdir(parents=True)
    (place / "directory").mkdir()
    (place / "no name").touch()
    assert subject.all() == ()
    (place / "link").symlink_to("/etc/passwd")
    with pytest.raises(NotFoundError):
        subject.restore(DATA, SnapshotName("link"))


def test_errors_of_the_file_system_are_one_sentence(
    subject: Snapshots, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sharing(monkeypatch, lambda *_: False)
    subject.take(DATA, ONE, copy=True)
    sharing(monkeypatch, failing(errno.ENOSPC))
    with pytest.raises(HostError, match="No space left on device"):
        subject.take(DATA, TWO)
    write(tmp_path, "later")
    with pytest.raises(HostError, match="No space left on device"):
        subject.restore(DATA, ONE)
    assert (read(tmp_path), hidden(tmp_path)) == (b"later", [".snapshots"])
    descriptor = taken_by_web(tmp_path, "data")
    with (
        pytest.raises(HostError, match="disk 'data': no snapshot can be made: No space left"),
        subject.of_task("web", TWO),
    ):
        pass
    os.close(descriptor)


def test_a_restore_that_was_killed_obstructs_no_later_one_and_its_file_goes_with_the_disk(
    subject: Snapshots, tmp_path: Path, no_reflinks: None
) -> None:
    subject.take(DATA, ONE, copy=True)
    (tmp_path / "disks/.data.solo5-restore").write_text("half")
    subject.restore(DATA, ONE)
    assert hidden(tmp_path) == [".snapshots"]
    (tmp_path / "disks/.data.solo5-restore").write_text("all of it")
    subject.remove_disk(DATA, snapshots=True)
    assert hidden(tmp_path) == []


def test_a_snapshot_that_exceeds_the_quota_is_not_restored(
    subject: Snapshots, disks: NamedDisks, tmp_path: Path, no_reflinks: None
) -> None:
    """A disk that was made smaller would otherwise give its space to another one, and take it back."""
    quotas = {str(tmp_path / "disks"): 12288}  # of which the snapshot takes 8192 here
    claims = DiskClaims(in_bytes(quotas))
    limited = Snapshots(NamedDisks(tmp_path / "disks", claims))
    disks.resize(DATA, 8192)
    subject.take(DATA, ONE, copy=True)
    disks.resize(DATA, 512, shrink=True)
    with pytest.raises(HostError, match="disk 'data' would take 7680 bytes: expected at most 3584, since the quota"):
        limited.restore(DATA, ONE)
    assert disks.get(DATA).size == 512
    assert hidden(tmp_path) == [".snapshots"]
    quotas[str(tmp_path / "disks")] = 1 << 20
    assert limited.restore(DATA, ONE).size == 8192


@pytest.mark.parametrize("verb", ["take", "restore"])
def test_a_copy_holds_up_no_other_disk_and_no_name(
    subject: Snapshots, disks: NamedDisks, tmp_path: Path, no_reflinks: None, verb: str
) -> None:
    disks.create(LOGS, 512)
    subject.take(DATA, ONE, copy=True)
    during: list[str] = []

    def progress(_done: int) -> None:
        if during:
            return
        during.append("copying")
        subject.take(LOGS, ONE, copy=True)
        subject.restore(LOGS, ONE)
        subject.remove_disk(LOGS, snapshots=True)
        for act in (lambda: subject.remove_disk(DATA, snapshots=True), lambda: subject.restore(DATA, ONE)):
            with pytest.raises(TakenError, match="'data' is in use by another process"):
                act()
        assert disks.get(DATA).task == ""
        subject.remove(DATA, ONE)

    write(tmp_path, "content")
    if verb == "take":
        subject.take(DATA, TWO, copy=True, progress=progress)
    else:
        subject.restore(DATA, ONE, progress)
    assert during == ["copying"]
    assert [each.name for each in subject.all()] == (["two"] if verb == "take" else [])


def test_a_disk_is_not_removed_before_a_snapshot_of_its_ended_task_has_its_name(
    subject: Snapshots, tmp_path: Path
) -> None:
    descriptor = taken_by_web(tmp_path, "data")
    with subject.of_task("web", ONE) as instant:
        os.close(descriptor)
        with pytest.raises(TakenError, match="disk 'data': a snapshot of it is being made"):
            subject.remove_disk(DATA, snapshots=True)
        instant.take()
        instant.keep()
    subject.remove_disk(DATA, snapshots=True)
    assert list((tmp_path / "disks").iterdir()) == []


def test_a_host_without_disks_has_no_snapshots(tmp_path: Path) -> None:
    none = Snapshots(NamedDisks(tmp_path / "none"))
    assert none.all() == ()
    with pytest.raises(NotFoundError, match="no disk is named 'data'"):
        none.take(DATA, ONE)


# --- of a running task --------------------------------------------------------------------------------------------


def taken_by_web(tmp_path: Path, *names: str) -> int:
    """Lock named disks, and a file of another kind, as a task does."""
    (tmp_path / "other").touch()
    disks = [disk_of(tmp_path / "disks" / name, name, backing=Backing.NAMED) for name in names]
    return lock([*disks, disk_of(tmp_path / "other", "other")], task="web")


def test_a_disk_that_changes_its_task_meanwhile_has_no_snapshot(subject: Snapshots, tmp_path: Path) -> None:
    descriptor = taken_by_web(tmp_path, "data")
    with subject.of_task("web", ONE) as instant:
        os.close(descriptor)
        with pytest.raises(HostError, match="disk 'data' is no longer that of task web"):
            instant.prepare()


def test_a_task_without_disks_has_no_snapshot(subject: Snapshots) -> None:
    with pytest.raises(HostError, match="task web has no named disk any more"), subject.of_task("web", ONE):
        pass


def test_a_file_system_that_fails_within_the_instant(
    subject: Snapshots, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    descriptor = taken_by_web(tmp_path, "data")
    with subject.of_task("web", ONE) as instant:
        sharing(monkeypatch, failing(errno.EIO))
        with pytest.raises(HostError, match="no snapshot can be made: Input/output error"):
            instant.take()
        sharing(monkeypatch, lambda *_: False)
        with pytest.raises(HostError, match="shares no blocks"):
            instant.take()
    os.close(descriptor)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(errno.EIO, os.strerror(errno.EIO)), "the snapshots cannot be written: Input/output error"),
        (FileExistsError(errno.EEXIST, "exists"), "disk 'logs' has a snapshot 'one' already"),
        (RuntimeError("other"), "other"),
    ],
)
def test_all_snapshots_are_kept_or_none(
    subject: Snapshots,
    disks: NamedDisks,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    sentence: str,
) -> None:
    disks.create(LOGS, 512)
    descriptor = taken_by_web(tmp_path, "data", "logs")

    def fail_for_the_second(target: int, path: Path) -> None:
        if path.parent.name == "logs":
            raise error
        link_unnamed(target, path)

    monkeypatch.setattr(snapshots, "link_unnamed", fail_for_the_second)
    with subject.of_task("web", ONE) as instant:
        instant.take()
        with pytest.raises(type(error) if isinstance(error, RuntimeError) else Exception, match=sentence):
            instant.keep()
    assert hidden(tmp_path) == []
    os.close(descriptor)
