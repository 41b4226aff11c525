"""Allocation, adoption and release of users, with processes killed at every step."""

import asyncio
import fcntl
import json
import os
import resource
import threading
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.fast.users.conftest import below
from tests.support.fakes.background import yields
from tests.support.interpreter import python

from solo5_systemd.base.errors import DependencyError, HostError, TakenError
from solo5_systemd.base.names import TaskName
from solo5_systemd.storage import owner
from solo5_systemd.storage.model import GivenDisk
from solo5_systemd.users import allocation
from solo5_systemd.users.allocation import AllocatedUser, Users
from solo5_systemd.users.registry import Registry
from solo5_systemd.users.userdb_records import allocating, user_record

WEB, DB = TaskName("web"), TaskName("db")


@pytest.fixture(autouse=True)
def resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocation, "pwd", SimpleNamespace(getpwuid=int))


def users(
    root: Path,
    uids: range = range(61200, 61210),
    taken: list[tuple[int, str]] | None = None,
    broken: Collection[str] = (),
) -> Users:
    """Return a registry; `taken` gets user and path of each reclaimed disk; `broken`: paths that fail."""

    def reclaim_disk(uid: int, disk: GivenDisk) -> None:
        if disk.path in broken:
            raise HostError(f"disk {disk.path}: Input/output error.")
        if taken is not None:
            taken.append((uid, disk.path))

    below(root)
    owner.reclaim_disk = reclaim_disk
    return Users(lambda: uids)


@pytest.fixture
def of(tmp_path: Path) -> Users:
    return users(tmp_path)


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len([*Path("/proc/self/fd").iterdir()]) + 150, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def left(root: Path) -> set[str]:
    return {*Registry().tasks(), *(file.name for file in (root / "userdb").iterdir())}


@contextmanager
def started(of: Users, task: TaskName) -> Iterator[int]:
    """A start in progress, with the lock of the task."""
    held = of._acquire(task)
    try:
        yield held.uid
    finally:
        os.close(held.descriptor)


async def test_each_task_has_a_user_until_it_is_released(of: Users, tmp_path: Path) -> None:
    with started(of, WEB) as web, started(of, DB) as db:
        assert web != db
        assert (Registry().uid(WEB), Registry().uid(DB)) == (web, db)
    await of.release(WEB)
    assert left(tmp_path) == {"db", f"{db}.user", f"solo5-{db}.user"}
    await of.release(WEB)
    await of.release(DB)
    assert left(tmp_path) == set()
    assert Registry().uid(WEB) is None


def test_record_is_one_that_systemd_reads_under_both_names(tmp_path: Path) -> None:
    with started(users(tmp_path), WEB) as uid:
        by_number, by_name = (tmp_path / "userdb" / f"{stem}.user" for stem in (f"{uid}", f"solo5-{uid}"))
        record = json.loads(by_number.read_text())
        assert (record["userName"], record["uid"], record["gid"]) == (f"solo5-{uid}", uid, uid)
        assert by_number.samefile(by_name)
        assert by_number.stat().st_mode & 0o777 == 0o644


async def test_uid_is_used_again_as_late_as_possible(of: Users) -> None:
    seen = []
    for _ in range(20):
        with started(of, WEB) as uid:
            seen.append(uid)
        await of.release(WEB)
    assert sorted(seen[:10]) == list(range(61200, 61210))
    assert seen[:10] == seen[10:]


async def test_range_that_is_used_up_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    of = users(tmp_path, range(61200, 61201))
    with started(of, WEB), pytest.raises(TakenError, match="all 1 users of tasks, 61200 to 61200, are in use"):
        of._acquire(DB)
    await of.release(WEB)
    with started(of, DB) as uid:
        assert uid == 61200
    await of.release(DB)
    assert left(tmp_path) == set()


async def test_second_start_of_a_name_is_refused_and_touches_nothing(of: Users, tmp_path: Path) -> None:
    with started(of, WEB):
        before = left(tmp_path)
        with pytest.raises(TakenError, match="task name 'web' is taken: another start of it is in progress"):
            of._acquire(WEB)
        await of.release(WEB)
        assert await of.collect(_none, _nothing) == []
        assert await of.tasks() == []
        assert left(tmp_path) == before


DYING = """
import asyncio, os, sys
from pathlib import Path
from tests.fast.users.conftest import below
from solo5_systemd.storage import given_disks, owner
from solo5_systemd.users.allocation import Users
from solo5_systemd.storage.model import GivenDisk
def users(root):
    below(root)
    owner.reclaim_disk = lambda *_: None
    return Users(lambda: range(61200, 61210))
def die_at(root, step):
    def dies(event, arguments):
        nonlocal step
        if event in ("open", "os.link", "os.remove", "os.rename") and str(root) in str(arguments):
            step -= 1
            if step < 0:
                os._exit(9)
    sys.addaudithook(dies)
for step in range(60):
    root = Path(sys.argv[1], str(step))
    if sys.argv[2] == "release":
        held = users(root)._acquire("web")
        given_disks.add(held.uid, [GivenDisk("/srv/disk.img", 1, 2)])
        os.close(held.descriptor)
    if not (child := os.fork()):
        die_at(root, step)
        users(root)._acquire("web") if sys.argv[2] == "start" else asyncio.run(users(root).release("web"))
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(status)
    if not status:
        break
"""


@pytest.mark.parametrize("act", ["start", "release"])
def test_what_is_killed_at_any_step_leaves_nothing_that_a_collection_misses(tmp_path: Path, act: str) -> None:
    statuses = python(DYING, str(tmp_path), act).stdout.split()
    assert statuses == ["9"] * (len(statuses) - 1) + ["0"]
    assert len(statuses) > 5
    for step in range(len(statuses)):
        of = users(tmp_path / str(step))
        with started(of, DB):
            asyncio.run(of.collect(_db, _nothing))
            assert {name for name in left(tmp_path / str(step)) if "web" in name} == set()
            assert len(left(tmp_path / str(step))) == 3, f"only what db has, killed at step {step}"
            assert not list((tmp_path / str(step) / "notes").glob("*"))


async def test_a_start_waits_for_another_process_that_has_its_users_file(
    of: Users, monkeypatch: pytest.MonkeyPatch
) -> None:
    with started(of, WEB) as first:
        tried = asyncio.Event()
        real = of._acquire

        def trying(task: TaskName) -> AllocatedUser:
            tried.set()
            return real(task)

        monkeypatch.setattr(of, "_acquire", trying)
        waiting = asyncio.ensure_future(of.acquire(WEB))
        await tried.wait()
        assert not waiting.done()
    held = await waiting
    assert (held.uid, held.adopted) == (first, True)
    monkeypatch.setattr(allocation, "TASK_LOCK_TIMEOUT_S", 0.03)
    for act in (of.acquire(WEB), of.removal(WEB).__aenter__()):
        with pytest.raises(TakenError, match="another start of it is in progress"):
            await act
    os.close(held.descriptor)


async def test_a_collection_holds_no_lock_of_a_task_with_a_unit_during_the_call_of_pid_1(of: Users) -> None:
    """A restart of a declared task, which keeps its user, would wait for PID 1's answer or fail."""
    with started(of, WEB), started(of, DB):
        pass
    freed: list[str] = []

    async def loaded() -> Collection[TaskName]:
        with started(of, WEB):
            return {WEB}

    async def before(task: TaskName) -> None:
        assert of._registry.lock_task(task) is None, "no start has its name before its request is gone"
        freed.append(task)

    assert await of.collect(loaded, before) == ["db"]
    assert freed == ["db"]


async def test_a_collection_needs_no_descriptor_for_each_task(tmp_path: Path, few_descriptors: None) -> None:
    of = users(tmp_path, range(61200, 61500))
    for number in range(300):
        with started(of, TaskName(f"t{number}")):
            pass
    assert len(await of.collect(_none, _nothing)) == 300


async def test_a_removal_that_waited_for_a_start_leaves_its_user_alone(of: Users, tmp_path: Path) -> None:
    with started(of, WEB) as uid:
        removing = asyncio.ensure_future(of.removal(WEB).__aenter__())
        await yields(100)  # until it waits for a lock
    with pytest.raises(TakenError, match="task 'web' was started meanwhile"):
        await removing
    assert Registry().uid(WEB) == uid
    held = of._acquire(DB)
    removing = asyncio.ensure_future(removed(of, DB))
    await yields(100)  # until it waits for a lock
    await of.release(DB, held.descriptor)
    await removing
    assert left(tmp_path) == {"web", f"{uid}.user", f"solo5-{uid}.user"}


async def removed(of: Users, task: TaskName) -> None:
    async with of.removal(task):
        pass


async def test_a_removal_that_is_cancelled_while_its_thread_waits_keeps_no_lock(of: Users, tmp_path: Path) -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1, "asyncio"))
    with started(of, WEB):
        pass
    goes_on = threading.Event()
    busy = asyncio.ensure_future(asyncio.to_thread(goes_on.wait, 60))
    removing = asyncio.ensure_future(removed(of, WEB))
    await yields(100)  # until it waits for a lock
    removing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await removing
    goes_on.set()
    await busy
    await asyncio.to_thread(int)  # behind the removal
    assert left(tmp_path) == set()
    os.close((await of.acquire(WEB)).descriptor)


async def test_a_cancelled_start_leaves_the_user_that_it_adopted(of: Users, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise HostError("not resolved.")

    with started(of, WEB) as uid:
        pass
    monkeypatch.setattr(allocation, "_check_resolved", fail)
    with pytest.raises(HostError):
        await of.acquire(WEB)
    assert Registry().uid(WEB) == uid
    with pytest.raises(HostError):
        await of.acquire(DB)
    assert Registry().uid(DB) is None


async def test_a_collection_continues_after_a_task_whose_network_is_not_released(
    of: Users, caplog: pytest.LogCaptureFixture
) -> None:
    with started(of, WEB), started(of, DB):
        pass

    async def fail(task: TaskName) -> None:
        if task == DB:
            raise HostError("no answer.")

    for _ in range(2):
        await of.collect(_none, fail)
        assert await of.tasks() == ["db"]
    assert "the user of task db is kept: no answer." in caplog.text
    assert await of.collect(_none, _nothing) == ["db"]


async def test_a_removal_keeps_starts_out_and_frees_the_user(
    of: Users, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allocation, "TASK_LOCK_TIMEOUT_S", 0.03)
    for has_user in (True, False):
        if has_user:
            with started(of, WEB):
                pass
        async with of.removal(WEB):
            with pytest.raises(TakenError):
                await of.acquire(WEB)
        assert left(tmp_path) == set()
        with pytest.raises(HostError):
            async with of.removal(WEB):
                raise HostError("no answer.")
        assert left(tmp_path) == set()
    with started(of, WEB) as uid:
        pass
    with pytest.raises(HostError):
        async with of.removal(WEB):
            raise HostError("no answer.")
    assert Registry().uid(WEB) == uid, "for the next attempt"
    with started(of, WEB):
        pass


DISK = GivenDisk("/srv/disk.img", 1, 2)


def noted(root: Path, *uids: int, more: str = "") -> None:
    """Have users of an earlier boot, each with the disk."""
    (root / "notes").mkdir(mode=0o700)
    for uid in uids:
        (root / f"notes/{uid}").write_text(f'["/srv/disk.img", 1, 2]\n{more}')


async def test_user_of_an_earlier_boot_that_has_a_disk_is_not_allocated_before_that_is_taken_back(
    tmp_path: Path,
) -> None:
    taken: list[tuple[int, str]] = []
    of = users(tmp_path, range(61200, 61201), taken)
    noted(tmp_path, 61200, more='["/srv/cut')
    with pytest.raises(TakenError, match="all 1 users"):
        of._acquire(WEB)
    assert await of.reclaim() == []
    assert taken == [(61200, "/srv/disk.img")]
    with started(of, WEB) as uid:
        await of.record_disks(uid, [DISK])
        assert await of.collect(_none, _nothing) == []
        assert await of.reclaim() == []
        assert len(taken) == 1, "a start has it"
    assert await of.reclaim() == []
    assert len(taken) == 1, "a task has it"


async def test_first_start_of_a_boot_does_not_wait_for_a_file_system_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hangs(_: int, __: GivenDisk) -> None:
        is_hanging.set()
        goes_on.wait(60)

    is_hanging, goes_on = threading.Event(), threading.Event()
    noted(tmp_path, 61200)
    monkeypatch.setattr(allocation, "RECLAIM_TIMEOUT_S", 0.01)
    of = users(tmp_path, range(61200, 61202))
    monkeypatch.setattr(owner, "reclaim_disk", hangs)
    try:
        held = await of.acquire(WEB)
        os.close(held.descriptor)
        assert held.uid == 61201
        assert await asyncio.to_thread(is_hanging.wait, 60), "the start may be done before the thread begins"
        assert b"could not be taken back" in (tmp_path / "userdb/61200.user").read_bytes(), "PID 1 leaves it alone, too"
    finally:
        goes_on.set()
    await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})


async def test_a_note_stays_until_each_of_its_disks_is_taken_back_and_so_does_the_user(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = {"/srv/other.img"}
    of = users(tmp_path, range(61200, 61201), broken=broken)
    with started(of, WEB) as uid:
        await of.record_disks(uid, [DISK])
        await of.record_disks(uid, [GivenDisk("/srv/other.img", 1, 3)])
    await of.release(WEB)
    assert "disk /srv/other.img: Input/output error." in caplog.text
    assert left(tmp_path) == {"61200.user", "solo5-61200.user"}, "the name is free, the user is not"
    with pytest.raises(TakenError, match="all 1 users"):
        of._acquire(WEB)
    assert await of.collect(_none, _nothing) == []
    assert await of.reclaim() == ["disk /srv/other.img: Input/output error."]
    broken.clear()
    assert await of.reclaim() == []
    assert left(tmp_path) == set()
    assert list((tmp_path / "notes").iterdir()) == []
    with started(of, WEB) as again:
        assert again == uid


async def test_a_user_without_a_task_is_freed_when_another_task_has_got_its_disk(tmp_path: Path) -> None:
    """By another path: the volume was unmounted before its disk could be reclaimed, and is mounted elsewhere."""
    lost = GivenDisk("/volumes/1/disk.img", 7, 2, 99, "/volumes/1")
    broken = {lost.path, "/srv/other.img"}
    of = users(tmp_path, broken=broken)
    with started(of, WEB) as uid:
        await of.record_disks(uid, [lost])
    await of.release(WEB)
    assert left(tmp_path) == {f"{uid}.user", f"solo5-{uid}.user"}
    for other in (
        lost._replace(path="/volumes/2/disk.img", inode=3),
        lost._replace(filesystem=98),
        GivenDisk("/dev/loop0", 7, 0),
    ):
        await of.disk_taken(uid, other)
        assert left(tmp_path), "another file"
    await of.disk_taken(uid + 1, lost)
    await of.disk_taken(uid, lost._replace(path="/volumes/2/disk.img", device=8, mount="/volumes/2"))
    assert left(tmp_path) == set()
    assert list((tmp_path / "notes").iterdir()) == []


async def test_a_user_with_a_task_or_another_disk_stays_when_a_disk_is_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    device, other = GivenDisk("/dev/vg/a", 5, 0), GivenDisk("/srv/other.img", 1, 3)
    of = users(tmp_path, broken={device.path, other.path})
    with started(of, WEB) as uid:
        await of.record_disks(uid, [device, other])
    await of.disk_taken(uid, device._replace(path="/dev/dm-0"))
    assert left(tmp_path) == {"web", f"{uid}.user", f"solo5-{uid}.user"}, "its task is not removed"
    await of.release(WEB)
    assert await of.reclaim() == ["disk /srv/other.img: Input/output error."]
    with started(of, DB) as second:
        await of.record_disks(second, [other])
        await of.disk_taken(second, other)
        assert (tmp_path / f"notes/{second}").read_text() == "", "its task goes on"
        assert {"db", f"{second}.user"} < left(tmp_path)
    (tmp_path / "notes").rename(tmp_path / "away")
    (tmp_path / "notes").mkdir(mode=0o700)
    (tmp_path / f"notes/{uid}").mkdir()
    await of.disk_taken(uid, other)
    assert "cannot be managed: Is a directory" in caplog.text, "and the start that got it goes on"


async def test_disks_of_a_start_that_was_killed_are_noted_with_those_of_the_next(tmp_path: Path) -> None:
    taken: list[tuple[int, str]] = []
    of = users(tmp_path, taken=taken)
    with started(of, WEB) as uid:
        await of.record_disks(uid, [DISK])
    with started(of, WEB) as again:
        assert again == uid
        await of.record_disks(uid, [GivenDisk("/srv/other.img", 1, 3)])
        await of.record_disks(uid, [DISK])
    assert (tmp_path / "notes").stat().st_mode & 0o777 == 0o700
    await of.release(WEB)
    assert taken == [(uid, "/srv/disk.img"), (uid, "/srv/other.img")]
    assert list((tmp_path / "notes").iterdir()) == []


async def test_disks_of_a_user_that_systemd_has_allocated_are_taken_back_and_stay_noted(tmp_path: Path) -> None:
    """A start may be about to use the user: its given-disk file must not be removed."""
    taken: list[tuple[int, str]] = []
    of = users(tmp_path, taken=taken)
    noted(tmp_path, 61200)
    (tmp_path / "dynamic-uid").mkdir()
    (tmp_path / "dynamic-uid/61200").touch(0o600)
    with (tmp_path / "dynamic-uid/61200").open("w") as systemds:
        fcntl.flock(systemds, fcntl.LOCK_EX)
        assert await of.reclaim() == []
        assert taken == [(61200, "/srv/disk.img")]
        assert (tmp_path / "notes/61200").exists()
    assert await of.reclaim() == []
    assert not (tmp_path / "notes/61200").exists()


async def test_a_note_is_on_stable_storage_before_a_disk_is_given(
    of: Users, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fsync(2) of file and directories: after a power loss, the owner on another disk is still listed."""
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(str(Path(f"/proc/self/fd/{fd}").readlink())))
    with started(of, WEB) as uid:
        await of.record_disks(uid, [DISK])
        assert synced == [str(tmp_path), str(tmp_path / f"notes/.{uid}.new"), str(tmp_path / "notes")]
        assert [each.name for each in (tmp_path / "notes").iterdir()] == [f"{uid}"]


async def test_user_that_this_host_does_not_find_is_the_missing_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacking(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file: No such file or directory")

    monkeypatch.setattr(allocation, "pwd", SimpleNamespace(getpwuid={}.__getitem__))
    monkeypatch.setattr(allocation, "CDLL", lacking)
    with pytest.raises(DependencyError, match="library libnss_systemd.so.2 is missing.*libnss-systemd"):
        await users(tmp_path).acquire(WEB)
    assert left(tmp_path) == set()
    monkeypatch.setattr(allocation, "CDLL", lambda _: None)
    with pytest.raises(HostError, match=r"expected systemd as a source of users.*nsswitch\.conf"):
        await users(tmp_path).acquire(WEB)
    assert left(tmp_path) == set()


def test_place_that_cannot_be_written_is_the_hosts_fault(tmp_path: Path) -> None:
    (tmp_path / "users").touch()
    with pytest.raises(HostError, match="the users of tasks in .* cannot be managed: File exists"):
        asyncio.run(users(tmp_path).acquire(WEB))


async def _nothing(_: TaskName) -> None:
    pass


async def _none() -> Collection[TaskName]:
    return ()


async def _db() -> Collection[TaskName]:
    return (DB,)


# --- user records, and the lock of a uid, shared with PID 1 ------------------------------------------------------


def test_while_we_hold_it_systemd_has_to_take_another(tmp_path: Path) -> None:
    with allocating(61200) as is_ours:
        assert is_ours
        with allocating(61200) as also:
            assert not also
        with allocating(61201) as other:
            assert other
    assert list((tmp_path / "dynamic-uid").iterdir()) == []


def test_a_second_name_is_of_the_same_user() -> None:
    first, second = json.loads(user_record(61200, WEB)), json.loads(user_record(61200, WEB, "solo5-web"))
    assert second.pop("userName") == "solo5-web"
    assert first.pop("userName") == "solo5-61200"
    assert first == second
