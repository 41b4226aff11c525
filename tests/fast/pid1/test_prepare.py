"""What a preparation, and what clears up after it, report of their own failures."""

import errno
import gc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from solo5_systemd.base.errors import HostError
from solo5_systemd.base.names import TaskName
from solo5_systemd.pid1 import __main__ as program
from solo5_systemd.pid1 import clear, prepare


@pytest.mark.parametrize("words", [["web"], ["--clear", "web"]])
def test_an_error_of_the_kernel_is_a_sentence_in_the_journal_of_the_unit(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(name: TaskName) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", f"/run/solo5/declared/{name}/x")

    logged: list[tuple[str, str]] = []
    verb = "clear" if "--clear" in words else "prepare"
    fail.__name__ = verb
    monkeypatch.setattr(clear if verb == "clear" else prepare, verb, fail)
    monkeypatch.setattr(clear, "log_about", lambda unit, text: logged.append((unit, text)))
    monkeypatch.setattr(gc, "disable", lambda: None)
    assert program.main("prepare", words) == 125
    assert logged == [
        ("web.service", f"{verb} failed: [Errno 28] No space left on device: '/run/solo5/declared/web/x'.")
    ]


async def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "web").write_text("no directory")
    monkeypatch.setattr(prepare, "DIRECTORY", str(tmp_path))
    with pytest.raises(HostError, match="web/environment cannot be written: Not a directory: expected room"):
        await prepare.prepare(TaskName("web"))


async def test_the_locks_of_all_disks_are_read_for_a_task_with_disks_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    async def sweep() -> None:
        read.append("swept")

    def holders() -> dict[object, str]:
        read.append("read")
        return {}

    monkeypatch.setattr(clear, "DIRECTORY", str(tmp_path))
    monkeypatch.setattr(clear, "holders", holders)
    monkeypatch.setattr(clear, "fdstore", SimpleNamespace(restored=dict, remove=str, barrier=str))
    (tmp_path / "web/disks").mkdir(parents=True)
    disks: Any = SimpleNamespace(sweep=sweep)
    await clear.drop_held(TaskName("web"), disks)
    (tmp_path / "web/disks/data").symlink_to("/srv/data")
    await clear.drop_held(TaskName("web"), disks)
    assert read == ["swept", "read", "swept"]
