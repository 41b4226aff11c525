"""Updates: requests, which tasks can be updated beside a running guest, and the files of images."""

import os
import stat
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from solo5_systemd.base import declared_units
from solo5_systemd.base.errors import InvalidRequestError, NotFoundError, SettingsError, TakenError
from solo5_systemd.base.names import DeviceName, Target, TaskName, is_instance, is_task_name
from solo5_systemd.declared import update_files
from solo5_systemd.declared.syntax import Source, parse_file
from solo5_systemd.declared.update_files import Phase, UpdateFiles, collect_previous, sha256
from solo5_systemd.declared.update_request import (
    ReadyLine,
    ReadyPort,
    UpdateRequest,
    check_beside,
    check_same_devices,
    next_task,
    ready_by,
)
from solo5_systemd.image.manifest import Manifest
from solo5_systemd.network.model import PortRequest, Protocol
from solo5_systemd.storage.model import DiskRequest
from solo5_systemd.task.workload import Workload

WEB = Workload(name=TaskName("web"), image="/srv/web.hvt")
SERVICE = DeviceName("service")
HTTPS = PortRequest(nic=SERVICE, host_port=8443, port=443, protocol=Protocol.TCP)
DNS = PortRequest(nic=SERVICE, host_port=53, port=53, protocol=Protocol.UDP)
TCP_443 = ReadyPort(protocol=Protocol.TCP, port=443)
DECLARED = UpdateRequest(ready=ReadyPort(protocol=Protocol.UDP, port=53), timeout=90.0, drain=0.0, watch=5.0)


def test_the_name_of_the_second_guest_is_one() -> None:
    assert next_task(TaskName("web")) == "web.next"
    with pytest.raises(InvalidRequestError, match="at most 123 characters"):
        next_task(TaskName("w" * 124))
    assert next_task(TaskName("web@1")) == "web.next.1"
    assert next_task(TaskName(f"web@{'1' * 119}")) == f"web.next.{'1' * 119}"
    with pytest.raises(InvalidRequestError, match="at most 123 characters"):
        next_task(TaskName(f"web@{'1' * 120}"))


_PARTS = ("next", "nextnext", "a", "next.a", "a.next", ".next", ".next.", "next.next", "-", "n")


def test_no_two_tasks_have_the_same_second_guest() -> None:
    """Else an update of one would remove the other's."""
    prefixes = [f"w{part}" for part in _PARTS]
    tasks = [*prefixes, *(f"{prefix}@{instance}" for prefix in prefixes for instance in _PARTS)]
    tasks += [f"{prefix}.next.{instance}" for prefix in prefixes for instance in _PARTS]
    seen: dict[str, str] = {}
    for task in filter(is_task_name, tasks):
        with suppress(InvalidRequestError):
            assert seen.setdefault(next_task(TaskName(task)), task) == task
            assert not is_instance(next_task(TaskName(task)))
    assert {"wa.next", "wnext.next", "wa.next.a"} <= seen.keys()


@pytest.mark.parametrize("task", ["web@next", "web@1.next", "web.next@1", "web.nextday@1"])
def test_an_instance_whose_second_guest_could_be_another_ones_is_refused(task: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"task {task} cannot run a second guest during an update") as caught:
        next_task(TaskName(task))
    assert caught.value.hint == f"Replace the image, then: systemctl restart {task}"


@pytest.mark.parametrize(
    ("workload", "ports", "reason"),
    [
        (replace(WEB, disks=(DiskRequest(disk=DeviceName("data"), path="/d"),)), (HTTPS,), "disk data has one writer"),
        (replace(WEB, namespace="/run/netns/a"), (HTTPS,), "it shares network namespace /run/netns/a"),
        (WEB, (), "it publishes no port"),
    ],
)
def test_a_task_that_cannot_run_twice_is_refused(
    workload: Workload, ports: tuple[PortRequest, ...], reason: str
) -> None:
    with pytest.raises(InvalidRequestError, match=f"without a pause, since {reason}.*: expected --pause") as refused:
        check_beside(workload, ports)
    assert "`rollback`" in refused.value.hint, "an update is none"
    check_beside(WEB, (HTTPS,))
    copy = DiskRequest(disk=DeviceName("data"), path="/d", private=True)
    check_beside(replace(WEB, disks=(copy,)), (HTTPS,))


def manifest(*names: str) -> Manifest:
    return Manifest(target=Target.HVT, nics=tuple(map(DeviceName, names)), disks=())


def test_an_image_with_other_devices_is_refused() -> None:
    check_same_devices("new.hvt", manifest("b", "a"), manifest("a", "b"))
    with pytest.raises(InvalidRequestError, match=r"new.hvt has the devices NIC a: expected .* \(none\)"):
        check_same_devices("new.hvt", manifest("a"), manifest())


def test_what_makes_a_guest_ready() -> None:
    assert ready_by(ReadyLine(pattern="up"), (HTTPS,)) == ReadyLine(pattern="up")
    assert ready_by(None, (DNS, HTTPS)) == TCP_443
    assert ready_by(None, (DNS,)) is None


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(declared_units, "DIRECTORY", str(tmp_path / "run"))
    monkeypatch.setattr(update_files, "ETC", tmp_path / "etc")
    monkeypatch.setattr(update_files, "PREVIOUS", tmp_path / "previous")


@pytest.fixture
def files(tmp_path: Path) -> UpdateFiles:
    (tmp_path / "run/web").mkdir(parents=True)
    (tmp_path / "store").write_bytes(b"old")
    (tmp_path / "web.hvt").write_bytes(b"old")
    (tmp_path / "run/web/image").symlink_to(tmp_path / "store")
    return UpdateFiles(TaskName("web"))


def phase_of(files: UpdateFiles) -> Phase | None:
    return files.phase


def test_there_is_one_request_at_a_time(files: UpdateFiles) -> None:
    assert (files.request(DECLARED), files.under_way) == (DECLARED, False)
    files.write_request(image="/a")
    with pytest.raises(TakenError, match="an update of task web is under way"):
        files.write_request()
    assert files.request(DECLARED) == replace(DECLARED, image="/a")
    files.phase = Phase.SWITCHING
    assert phase_of(files) is Phase.SWITCHING
    files.end()
    assert (files.request(DECLARED), phase_of(files), files.under_way) == (DECLARED, None, False)


@pytest.mark.parametrize(
    "given",
    [
        {"image": "/srv/new.hvt", "ready": TCP_443, "timeout": 0.5, "drain": 0.0, "watch": 300.0, "pause": True},
        {"ready": ReadyLine(pattern="listening: [0-9]+"), "timeout": 20.0, "watch": 10.0},
        {},
    ],
)
def test_what_is_requested_goes_before_what_is_declared_also_a_default(
    files: UpdateFiles, given: dict[str, Any]
) -> None:
    files.write_request(**given)
    assert files.request(DECLARED) == replace(DECLARED, **given)


@pytest.mark.parametrize("wrong", ["", "[]", '{"timeout": -1}', '{"ready": "h"}', '{"pause": "yes"}', '{"watch": 1e9}'])
def test_a_damaged_request_is_refused(files: UpdateFiles, tmp_path: Path, wrong: str) -> None:
    (tmp_path / "run/web/update.json").write_text(wrong)
    with pytest.raises(InvalidRequestError, match=r"web/update.json"):
        files.request(DECLARED)


def test_steps_are_read_while_they_are_written(files: UpdateFiles) -> None:
    assert files.steps() == []
    files.log("one")
    files.log("two: “é”", end=126)
    assert files.steps() == [("one", None), ("two: “é”", 126)]
    files.write_request()
    assert files.steps() == [], "those of the last update"


def test_no_drop_in_is_written_or_removed_where_others_may_write(files: UpdateFiles) -> None:
    files.set_image("/srv/web.hvt", "/srv/web.hvt", lasting=True)
    text = files.drop_in.read_text()
    files.drop_in.parent.chmod(0o777)
    with pytest.raises(SettingsError, match=f"{files.drop_in.parent} may be changed by every user"):
        files.set_image("/srv/other.hvt", "/srv/web.hvt", lasting=True)
    files.remove_drop_in()
    files.unset_image()
    assert files.drop_in.read_text() == text
    assert not files.takes_declared("/srv/other.hvt"), "it is not read either"


def test_every_user_may_read_the_drop_in_whatever_the_umask_of_the_update(files: UpdateFiles) -> None:
    """Errors quote no value of a declaration that has another file."""
    before = os.umask(0o077)
    try:
        files.set_image("/srv/web.hvt", "/srv/web.hvt", lasting=True)
    finally:
        os.umask(before)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (files.drop_in.parent, files.drop_in)]
    assert modes == [0o755, 0o644]


def test_the_drop_in_is_what_it_was_after_an_update_that_was_undone(files: UpdateFiles, tmp_path: Path) -> None:
    drop_in = tmp_path / "etc/web.unikernel.d/50-update.conf"
    files.keep(str(tmp_path / "web.hvt"))
    files.set_image("/srv/100%.hvt", "/srv/web.hvt", lasting=True)
    assert drop_in.read_text().endswith("[Unikernel]\nImage=/srv/100%%.hvt\n")
    files.unset_image()
    assert not drop_in.parent.exists()
    files.set_image("/srv/first.hvt", "/srv/web.hvt", lasting=True)
    first = drop_in.read_text()
    files.keep(str(tmp_path / "web.hvt"))
    files.set_image("/srv/second.hvt", "/srv/web.hvt", lasting=True)
    files.unset_image()
    assert drop_in.read_text() == first
    files.remove_drop_in()
    files.unset_image()
    assert drop_in.read_text() == first
    files.keep(str(tmp_path / "web.hvt"))
    files.remove_drop_in()
    assert not drop_in.parent.exists()
    files.unset_image()
    assert drop_in.read_text() == first


def test_a_declared_image_is_taken_once_it_is_another_one_by_path_or_content(
    files: UpdateFiles, tmp_path: Path
) -> None:
    declared = str(tmp_path / "web.hvt")
    assert not files.takes_declared(declared), "there is no drop-in"
    files.set_image("/srv/next.hvt", declared, lasting=True)
    assert not files.takes_declared(declared)
    assert files.takes_declared("/srv/other.hvt")
    os.mkfifo(tmp_path / "fifo")
    assert files.takes_declared(str(tmp_path / "fifo")), "without a wait for who writes to it"
    (tmp_path / "web.hvt").write_bytes(b"fixed")
    assert files.takes_declared(declared)
    files.set_image("/srv/next.hvt", declared, lasting=False)
    assert files.takes_declared(declared), "the same one is to be tried again"
    drop_in = tmp_path / "etc/web.unikernel.d/50-update.conf"
    assert parse_file(Source(path="", content=drop_in.read_bytes()))[0].value == "/srv/next.hvt"
    drop_in.write_text("[Unikernel]\nImage=/srv/next.hvt\n")
    assert not files.takes_declared(declared), "of the operator's own"


def test_a_rollback_takes_the_file_or_else_its_copy(files: UpdateFiles, tmp_path: Path) -> None:
    path = tmp_path / "web.hvt"
    with pytest.raises(NotFoundError, match="task web has no earlier image"):
        files.previous()
    files.remember()
    with pytest.raises(NotFoundError):
        files.previous()
    files.keep(str(path))
    files.remember()
    with pytest.raises(NotFoundError):  # of an update that was interrupted before the task had the new image
        files.previous()
    (tmp_path / "store").write_bytes(b"new")
    files.remember()
    assert files.previous().present == str(path)
    path.write_bytes(b"new")
    copy = files.previous().present
    assert (Path(copy).read_bytes(), sha256(copy)) == (b"old", files.previous().sha256)
    # The next update: the copy of the first image goes, that of the second one comes.
    files.keep(str(path))
    (tmp_path / "store").write_bytes(b"newest")
    files.remember()
    assert not Path(copy).exists()
    assert files.previous().present == str(path)
    for each in (tmp_path / "previous/web").iterdir():
        each.write_bytes(b"damaged")
    path.unlink()
    with pytest.raises(NotFoundError, match="is damaged or was removed"):
        files.previous()


def test_whether_the_task_runs_another_image_than_the_recorded_one(files: UpdateFiles, tmp_path: Path) -> None:
    assert not files.switched
    files.keep(str(tmp_path / "web.hvt"))
    assert not files.switched
    (tmp_path / "store").write_bytes(b"new")
    assert files.switched


def test_the_previous_image_of_a_removed_declaration_is_collected(tmp_path: Path) -> None:
    etc, run, previous = (tmp_path / each for each in ("etc", "run", "previous"))
    assert collect_previous(dry_run=False) == [], "nothing was updated yet"
    for directory in (etc, run / "running", previous):
        directory.mkdir(parents=True)
    for name in ("web", "gone", "running", "site@1", "lost@1"):
        (previous / name).mkdir()
        (previous / name / "image.spt").write_bytes(b"")
        (previous / f"{name}.json").write_text("{}")
    (previous / "half.json").write_text("{}")
    (etc / "web.unikernel").symlink_to("/dev/null")
    (etc / "site@.unikernel").write_text("")
    lines = [f"previous image of task {name}: its declaration is gone" for name in ("gone", "half", "lost@1")]
    assert collect_previous(dry_run=True) == lines
    assert collect_previous(dry_run=False) == lines
    assert collect_previous(dry_run=False) == []
    assert sorted(each.name for each in previous.iterdir()) == sorted(
        f"{name}{end}" for name in ("web", "running", "site@1") for end in ("", ".json")
    )
