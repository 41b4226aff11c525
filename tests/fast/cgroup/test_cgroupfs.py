import errno
import os
from pathlib import Path

import pytest

from solo5_systemd.cgroup.cgroupfs import CgroupFs

GROUP = "/solo5.slice/solo5-task-web.service"


@pytest.fixture(params=["unified", "hybrid"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A cgroup file system; on a hybrid host it is one level deeper."""
    top = tmp_path if request.param == "unified" else tmp_path / "unified"
    group = top / GROUP.lstrip("/")
    group.mkdir(parents=True)
    (top / "cgroup.procs").touch()
    (group / "cpu.stat").write_text("usage_usec 7\n")
    (group / "memory.current").write_text("4096\n")
    return tmp_path


async def test_a_units_files_are_read_on_either_kind_of_host(root: Path) -> None:
    sample = await CgroupFs(root).usage(GROUP)
    assert sample is not None
    assert (sample.cpu.total, sample.memory.current, sample.memory.peak) == (7, 4096, None)


async def test_a_cgroup_that_is_gone_has_no_usage(root: Path) -> None:
    assert await CgroupFs(root).usage("/solo5.slice/other.service") is None


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ENODEV])
async def test_a_cgroup_may_vanish_while_it_is_read(root: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def vanish(*_: object, **__: object) -> str:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "read_text", vanish)
    assert await CgroupFs(root).usage(GROUP) is None


async def test_another_error_is_not_taken_for_a_vanished_cgroup(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> str:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "read_text", fail)
    with pytest.raises(OSError, match="Input/output error"):
        await CgroupFs(root).usage(GROUP)


STAT = "41 (solo5-hvt) x) {state} 1 41 41 0 -1 4194304 99 0 0 0 5 6 0 0 20 0 {threads} 0 1234 0 0"


@pytest.mark.parametrize("state, threads, stalled", [("Z", 2, True), ("Z", 1, False), ("S", 3, False), ("R", 1, False)])
async def test_a_dead_leader_with_live_threads_is_stalled(
    tmp_path: Path, state: str, threads: int, *, stalled: bool
) -> None:
    (tmp_path / "41").mkdir()
    (tmp_path / "41" / "stat").write_text(STAT.format(state=state, threads=threads))
    assert await CgroupFs(tmp_path, proc=tmp_path).stalled(41) is stalled


async def test_a_process_that_is_gone_is_not_stalled(tmp_path: Path) -> None:
    assert not await CgroupFs(tmp_path, proc=tmp_path).stalled(41)
