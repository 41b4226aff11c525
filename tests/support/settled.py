"""Nothing of a test outlives it: no child, no thread, no descriptor, no asyncio task."""

import asyncio
import gc
import inspect
import threading
import time
from collections.abc import AsyncIterator, Generator
from contextlib import suppress
from pathlib import Path

import pluggy
import pytest
from packaging.version import Version

PATIENCE = 20.0
"""Seconds for what is on its way out: a worker thread of a closed loop, a child that was killed."""


def belongings() -> dict[str, str]:
    """What this process has open or running, each with a name for it and a description."""
    threads = (thread for thread in threading.enumerate() if not thread.name.startswith("asyncio_"))  # its loop's
    found = {f"thread {thread.ident}": thread.name for thread in threads}
    for file in Path("/proc/self/task").glob("*/children"):
        found |= {f"child {pid}": _read(Path(f"/proc/{pid}/cmdline")) for pid in _read(file).split()}
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that lists them
            found[f"descriptor {fd.name}"] = str(fd.readlink())
    return found


def _read(file: Path) -> str:
    try:
        return file.read_text().replace("\0", " ")
    except OSError:
        return ""  # it has just ended


_IS_OLD = Version(pluggy.__version__) < Version("1.2")
"""Of Debian 12, without the newer form of wrappers."""


@pytest.hookimpl(hookwrapper=True) if _IS_OLD else pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    """Around the test alone: what its fixtures have opened, its event loop too, is theirs to close."""
    before = belongings()
    yield
    deadline = time.monotonic() + PATIENCE
    while left := {key: what for key, what in belongings().items() if before.get(key) != what}:
        if time.monotonic() > deadline:
            pytest.fail(f"left behind: {left}", pytrace=False)
        gc.collect()
        time.sleep(0.01)


@pytest.fixture
async def no_task_left() -> AsyncIterator[None]:
    before = asyncio.all_tasks()  # those of the fixtures, and the one that runs this
    yield
    if left := asyncio.all_tasks() - before - {asyncio.current_task()}:
        pytest.fail(f"left behind: {left}", pytrace=False)


def pytest_configure(config: pytest.Config) -> None:
    # What a test leaves open is found here. The interpreter's own words would be about others: the loop that
    # pytest-asyncio leaves for the next asyncio.run() to drop, the socket that dbus-next drops where it cannot connect.
    for message in ("unclosed event loop", "unclosed <socket"):
        config.addinivalue_line("filterwarnings", f"ignore:{message}:ResourceWarning")


def pytest_itemcollected(item: pytest.Item) -> None:
    if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.function):
        item.fixturenames.append("no_task_left")
