import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.fakes.clock import passed

from solo5_systemd.base.errors import HostError
from solo5_systemd.nomad import logs
from solo5_systemd.nomad.logs import open_fifo


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    path = tmp_path / ".web.stdout.fifo"
    os.mkfifo(path)
    return path


@pytest.mark.leaps
async def test_a_reader_may_come_later(fifo: Path) -> None:
    async with asyncio.TaskGroup() as tasks:
        opening = tasks.create_task(open_fifo(str(fifo)))
        await passed(1)
        assert not opening.done()
        reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    os.close(opening.result())
    os.close(reader)


async def test_a_fifo_without_a_reader_is_an_error(fifo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "READER_TIMEOUT_S", 0.05)
    with pytest.raises(HostError, match=r"fifo has no reader: expected one within 0 seconds"):
        await open_fifo(str(fifo))


@pytest.mark.parametrize("replaced", ["alloc", "alloc/logs"])
async def test_a_directory_that_a_task_has_replaced_by_a_link_is_not_followed(tmp_path: Path, replaced: str) -> None:
    """`alloc/` of an allocation is writable for each of its tasks."""
    root, elsewhere = tmp_path / "3fa85f64", tmp_path / "elsewhere"
    (root / "alloc/logs").mkdir(parents=True)
    fifo = root / "alloc/logs/.web.stdout.fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    os.close(await open_fifo(str(fifo), str(root)))
    (root / replaced).rename(elsewhere)
    (root / replaced).symlink_to(elsewhere)
    with pytest.raises(HostError, match=r"fifo cannot be opened for writing: Not a directory"):
        await open_fifo(str(fifo), str(root))
    os.close(reader)


async def test_links_above_the_allocation_are_the_operators(tmp_path: Path) -> None:
    (tmp_path / "data/alloc").mkdir(parents=True)
    (tmp_path / "nomad").symlink_to("data")
    fifo = tmp_path / "nomad/alloc/.web.stdout.fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    fd = await open_fifo(str(fifo), str(tmp_path / "nomad"))
    assert os.path.sameopenfile(fd, reader)
    os.close(fd)
    os.close(reader)


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda path: path.symlink_to(path.parent / ".web.stdout.fifo"), "other is not a FIFO"),
        (lambda path: path.write_text("precious"), "other is not a FIFO"),
        (lambda path: None, "other cannot be opened for writing: No such file or directory"),
    ],
    ids=["link", "file", "nothing"],
)
async def test_what_is_no_fifo_is_not_opened(fifo: Path, make: Callable[[Path], object], words: str) -> None:
    path = fifo.with_name("other")
    make(path)
    with pytest.raises(HostError, match=words):
        await open_fifo(str(path))
    assert not path.is_file() or path.is_symlink() or path.read_text() == "precious"


async def test_no_descriptor_is_left(fifo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "READER_TIMEOUT_S", 0)
    before = set(Path("/proc/self/fd").iterdir())
    for path in (fifo, tmp_path / "none"):
        with pytest.raises(HostError):
            await open_fifo(str(path))
    assert set(Path("/proc/self/fd").iterdir()) == before
