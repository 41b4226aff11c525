import errno
import os
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.fakes.attributes import Attributes
from tests.support.fakes.kernel import failing

from solo5_systemd.base.names import TaskName
from solo5_systemd.cgroup import cgroupfs, hierarchy
from solo5_systemd.cgroup.cgroupfs import CgroupFs
from solo5_systemd.cgroup.hierarchy import ATTRIBUTE, read_fields, unified, write_fields

GROUP = "/solo5.slice/solo5-task-web.service"


@pytest.fixture(params=["unified", "hybrid"])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cgroup file system; on a hybrid host it is one level deeper."""
    top = tmp_path if request.param == "unified" else tmp_path / "unified"
    group = top / GROUP.lstrip("/")
    group.mkdir(parents=True)
    (top / "cgroup.procs").touch()
    (group / "cpu.stat").write_text("usage_usec 7\n")
    (group / "memory.current").write_text("4096\n")
    monkeypatch.setattr(hierarchy, "MOUNT", tmp_path)
    return tmp_path


async def test_a_units_files_are_read_on_either_kind_of_host(root: Path) -> None:
    with closing(CgroupFs().meter(GROUP)) as meter:
        sample = meter.sample()
    assert sample is not None
    assert (sample.cpu.total, sample.memory.current, sample.memory.peak) == (7, 4096, None)


@pytest.mark.parametrize("group", ["/solo5.slice/other.service", ""])
async def test_a_cgroup_that_is_gone_and_none_have_no_usage(root: Path, group: str) -> None:
    (root / "cpu.stat").write_text("usage_usec 7\n")
    with closing(CgroupFs().meter(group)) as meter:
        assert meter.sample() is None


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ENODEV])
async def test_a_cgroup_may_vanish_while_it_is_read(root: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(os, "read", failing(number))
    assert await CgroupFs().usages() == {}


async def test_another_error_is_not_taken_for_a_vanished_cgroup(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "read", failing(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        await CgroupFs().usages()


async def test_tasks_are_found_in_our_slice_and_those_below(root: Path) -> None:
    ours = next(path for path in (root, root / "unified") if (path / "solo5.slice").exists()) / "solo5.slice"
    within = ours / "solo5-shared.slice" / "solo5-task-job.scope"
    (within / "below").mkdir(parents=True)
    (within / "pids.current").write_text("2\n")
    (ours / "cgroup.procs").touch()
    (ours / "solo5-network@web.service").mkdir()
    (ours / "solo5-task-ending.service").mkdir()  # its files are gone already
    found = await CgroupFs().usages()
    assert {task: (usage.cpu.total, usage.processes) for task, usage in found.items()} == {
        "web": (7, None),
        "job": (None, 2),
    }


async def test_before_the_first_task_there_is_no_slice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cgroup.procs").touch()
    monkeypatch.setattr(hierarchy, "MOUNT", tmp_path)
    assert await CgroupFs().usages() == {}


async def test_a_device_has_the_name_that_it_has_in_dev_unless_it_was_unplugged(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (group,) = root.rglob("solo5-task-web.service")
    (group / "io.stat").write_text("254:0 rbytes=1\n8:0 rbytes=2\n")
    blocks = tmp_path / "block"
    blocks.mkdir()
    monkeypatch.setattr(cgroupfs, "BLOCKS", blocks)
    (blocks / "254:0").symlink_to("../../devices/pci/block/vda")
    found = await CgroupFs().usages()
    assert set(found[TaskName("web")].disks or ()) == {"vda", "8:0"}


STAT = "41 (solo5-hvt) x) {state} 1 41 41 0 -1 4194304 99 0 0 0 5 6 0 0 20 0 {threads} 0 1234 0 0"


@pytest.mark.parametrize("state, threads, stalled", [("Z", 2, True), ("Z", 1, False), ("S", 3, False), ("R", 1, False)])
async def test_a_dead_leader_with_live_threads_is_stalled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, threads: int, *, stalled: bool
) -> None:
    monkeypatch.setattr(cgroupfs, "PROC", tmp_path)
    (tmp_path / "41").mkdir()
    (tmp_path / "41" / "stat").write_text(STAT.format(state=state, threads=threads))
    assert await CgroupFs().stalled(41) is stalled


async def test_a_process_that_is_gone_is_not_stalled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroupfs, "PROC", tmp_path)
    assert not await CgroupFs().stalled(41)


async def test_controllers_are_those_of_the_unified_hierarchy(root: Path) -> None:
    subject = CgroupFs()
    assert list(await subject.controllers()) == []
    [procs] = root.rglob("cgroup.procs")
    (procs.parent / "cgroup.controllers").write_text("cpuset cpu memory\n")
    assert list(await subject.controllers()) == ["cpuset", "cpu", "memory"]


SCOPE_GROUP = "/solo5.slice/solo5-task-web.scope"
FIELDS = {"NOMAD_ALLOC_DIR": "/a/b/alloc", "NOTE": "two\nlines and \0 a zero: “é”"}


@pytest.fixture
def attributes(monkeypatch: pytest.MonkeyPatch) -> Attributes:
    return Attributes(monkeypatch)


@pytest.fixture
def scope(root: Path) -> str:
    group = Path(unified() + SCOPE_GROUP)
    group.mkdir()
    return str(group)


def test_what_was_written_is_read(attributes: Attributes, scope: str) -> None:
    assert read_fields(scope) == {}
    write_fields(scope, FIELDS)
    assert read_fields(scope) == FIELDS


def test_a_removed_cgroup_gets_no_attribute(attributes: Attributes, scope: str) -> None:
    write_fields(scope.replace("web", "other"), FIELDS)
    assert attributes.stored == {}


@pytest.mark.parametrize("mark", [b"", b"oops", b"\xff", b"[]", b'{"a": 1}', b'{"a": ["b"]}'])
def test_a_malformed_attribute_gives_no_fields(attributes: Attributes, scope: str, mark: bytes) -> None:
    write_fields(scope, FIELDS)
    [key] = attributes.stored
    assert key[1] == ATTRIBUTE
    attributes.stored[key] = mark
    assert read_fields(scope) == {}
