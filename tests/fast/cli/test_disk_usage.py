"""The disks of tasks beside the I/O of the host's devices: what is not known is absent."""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.fast.cli.conftest import Solo5ctl
from tests.fast.cli.test_stats import FULL, UNKNOWN
from tests.support.fakes.engine import FakeRuntime
from tests.support.fakes.tasks import running

from solo5_systemd.base.errors import HostError
from solo5_systemd.base.names import DeviceName, TaskName
from solo5_systemd.cli.metric_families import exposition, families
from solo5_systemd.cli.task_output import task_fields
from solo5_systemd.cli.verbs import stats
from solo5_systemd.cli.verbs.inspect import disks_json
from solo5_systemd.cli.verbs.stats import usage_json
from solo5_systemd.engine.queries import with_disks
from solo5_systemd.storage import archive_files, locks
from solo5_systemd.storage.io_limits import NO_IO_LIMITS, IoLimits
from solo5_systemd.storage.locks import Record, lock, records_of_tasks
from solo5_systemd.storage.model import Disk, FailedDisk

WEB, IDLE = TaskName("web"), TaskName("idle")
VDA, MAPPED = ("254:0", "vda"), ("253:0", "dm-0")
COUNTS = {"read_bytes": 4096, "written_bytes": 0, "reads": 1, "writes": 0}


def disk(name: str, inode: int, *devices: tuple[str, str], io: IoLimits = NO_IO_LIMITS) -> Disk:
    return Disk(disk=DeviceName(name), path=f"/srv/{name}", identity=(1, inode), io=io, devices=dict(devices))


@pytest.fixture
def engine() -> FakeRuntime:
    return FakeRuntime(running("web"))


@pytest.fixture
def held_disks() -> Iterator[None]:
    """A directory with the locks of running tasks; web has two disks on vda, one of them by a mapped device."""
    limited = IoLimits(read_bps=10_000_000)
    with ExitStack() as held:
        for task, disks in {
            "web": [disk("data", 2, MAPPED, VDA, io=limited), disk("log", 3, VDA, io=limited), disk("nowhere", 4)],
            "other": [disk("data", 5, VDA)],
            "": [disk("read", 6, VDA)],
        }.items():
            held.callback(os.close, lock(disks, task=task))
        yield


def test_a_sample_has_the_names_of_the_disks_on_each_device(held_disks: None) -> None:
    found = with_disks({WEB: FULL, IDLE: UNKNOWN})
    assert found[WEB].disks == {"dm-0": ["data"], "vda": ["data", "log"]}
    assert found[IDLE].disks == {}
    assert usage_json("web", None, found[WEB])["disks"] == [{"device": "vda", "disks": ["data", "log"], **COUNTS}]
    text = exposition(families([], {}, found, []))
    assert 'solo5_task_block_read_bytes_total{task="web",device="vda",disks="data,log"} 4096' in text


def test_disks_that_are_not_known_are_absent(tmp_path: Path) -> None:
    found = with_disks({WEB: FULL})
    assert usage_json("web", None, found[WEB])["disks"] == [{"device": "vda", **COUNTS}]
    assert 'solo5_task_block_reads_total{task="web",device="vda"} 1' in exposition(families([], {}, found, []))


def test_locks_are_not_read_where_no_device_was_used(tmp_path: Path) -> None:
    (tmp_path / "locks").touch()
    assert with_disks({IDLE: UNKNOWN})[IDLE].disks == {}


def test_a_disk_has_its_devices_limits_and_counters(held_disks: None) -> None:
    data, log, nowhere = disks_json(records_of_tasks()["web"], FULL)
    assert data["devices"] == ["dm-0", "vda"]
    assert data["io_limits"] == {"read_bps": "10M"}
    assert data["device_io"] == log["device_io"] == COUNTS, "the first of its devices that has counters"
    assert not {"devices", "io_limits", "device_io"} & nowhere.keys()
    of_full = Record(disks=[{"disk": "full", "backing": "file", "path": "/srv/full"}])
    full = disks_json(of_full, FULL, {"full"})
    shown = [text for key, text in task_fields(running("web"), 0, disks=[data, nowhere, *full]) if key == "Disk"]
    assert shown == [
        "data: file /srv/data, on dm-0 on vda, read_bps=10M, read 4K, written 0",
        "nowhere: file /srv/nowhere",
        "full: file /srv/full, no space is left in its file system",
    ]


def test_counters_that_are_not_known_are_absent_and_never_zero(held_disks: None) -> None:
    unused = FULL._replace(usage=FULL.usage._replace(disks={}))
    for sample in (None, UNKNOWN, unused):
        assert all("device_io" not in each for each in disks_json(records_of_tasks()["web"], sample))


def test_stats_inspect_and_metrics_name_disks_for_root(
    solo5ctl: Solo5ctl, engine: FakeRuntime, held_disks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stats, "FIRST_INTERVAL_S", 0)
    for root, named in ((True, True), (False, False)):
        engine.rounds = iter([{WEB: FULL}] * 2)
        [row] = json.loads(solo5ctl("stats", "--json", "--no-stream", "web", root=root).out)
        assert ("disks" in row["disks"][0]) is named
        engine.rounds = iter([{WEB: FULL}])
        assert ('device="vda",disks="data,log"' in solo5ctl("metrics", root=root).out) is named
    engine.rounds = iter([{WEB: FULL}])
    [task] = json.loads(solo5ctl("inspect", "--json", "web").out)
    assert [each.get("device_io") for each in task["disks"]] == [COUNTS, COUNTS, None]


def test_inspect_and_metrics_name_disks_on_full_file_systems(
    solo5ctl: Solo5ctl, engine: FakeRuntime, held_disks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = FailedDisk(task="web", disk="log", path="/srv/log", free=0)
    space = engine.machine.disk_space
    for root in (True, False):
        space.changed = [(full, True)]
        engine.rounds = iter([{WEB: FULL}])
        assert ('solo5_task_disk_full{task="web",disk="log"} 1' in solo5ctl("metrics", root=root).out) is root
    engine.rounds = iter([{WEB: FULL}])
    [task] = json.loads(solo5ctl("inspect", "--json", "web").out)
    assert [each.get("full") for each in task["disks"]] == [None, True, None]


def test_inspect_shows_archives_that_are_older_than_their_files(
    solo5ctl: Solo5ctl, engine: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    disks = [{"disk": each, "backing": "archive", "sha256": "ab"} for each in ("old", "same", "credential")]
    monkeypatch.setattr(locks, "records_of_tasks", lambda *_: {"web": Record(disks=disks, archives=[{}])})
    monkeypatch.setattr(archive_files, "outdated", lambda _record: {"old": True, "same": False})
    engine.rounds = iter([{WEB: FULL}])
    [task] = json.loads(solo5ctl("inspect", "--json", "web").out)
    assert [each.get("outdated") for each in task["disks"]] == [True, False, None]
    engine.rounds = iter([{WEB: FULL}])
    shown = [each.split(": ", 2)[2] for each in solo5ctl("inspect", "web").out.splitlines() if "Disk:" in each]
    assert shown == ["archive, SHA-256 ab, older than its files", *["archive, SHA-256 ab"] * 2]


async def test_a_file_system_that_does_not_answer_is_left_out() -> None:
    engine = FakeRuntime()
    engine.machine.steps.errors["look for changes of full disks"] = HostError("it hangs.")
    assert await engine.full_disks() == ()
