"""Claims of tasks: never beyond a limit together, and gone with the task's user."""

import asyncio
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.fast.users.conftest import below

from solo5_systemd.base.errors import TakenError
from solo5_systemd.base.locks import LockedError
from solo5_systemd.base.names import TaskName
from solo5_systemd.settings.node_limits import Claim, Node, Resource, tenant
from solo5_systemd.users import allocation
from solo5_systemd.users.allocation import Users
from solo5_systemd.users.registry import Registry

WEB = tenant("shop", "web")
ONE = Claim(tenant=WEB, amounts={Resource.TASKS: 1, Resource.COPIES: 7})
NODE = Node(capacity=lambda: {Resource.TASKS: 50})
"""A job has five tasks."""


def users(root: Path) -> Users:
    below(root)
    found = Users(lambda: range(61200, 61250), lambda: NODE)
    found._is_resolved = True  # NSS does not have the records of this directory
    return found


def total(root: Path) -> int:
    """Return how many tasks have a claim, as another process reads it."""
    return Registry().copies() // 7


async def test_a_claim_counts_until_the_user_of_its_task_is_freed(tmp_path: Path) -> None:
    of = users(tmp_path)
    held = {}
    for number in range(5):
        task = TaskName(f"web-{number}")
        held[task] = (await of.acquire(task)).descriptor
        await of.claim(task, ONE)
        await of.claim(task, ONE)  # again: it is in the place of the first
    with pytest.raises(TakenError, match="task other would have 1 tasks.*of which 5 are in use"):
        of.check_claim(TaskName("other"), ONE)
    for task, descriptor in held.items():
        await of.release(task, descriptor)
        of.check_claim(TaskName("other"), ONE)
    assert total(tmp_path) == 0
    assert Registry().tasks() == []


async def test_an_ended_task_that_keeps_its_user_has_no_claim(tmp_path: Path) -> None:
    of = users(tmp_path)
    os.close((await of.acquire(TaskName("web"))).descriptor)
    await of.claim(TaskName("web"), ONE)
    await of.end_claim(TaskName("web"))
    await of.end_claim(TaskName("web"))
    assert total(tmp_path) == 0


async def test_a_damaged_claim_counts_for_nothing(tmp_path: Path) -> None:
    of = users(tmp_path)
    os.close((await of.acquire(TaskName("web"))).descriptor)
    await of.claim(TaskName("web"), ONE)
    file = tmp_path / "users/registry"
    file.write_text(f"{file.read_text()}old 61201 damaged\n")
    assert total(tmp_path) == 1
    assert Registry().tasks() == ["old", "web"]


START = """
import asyncio, os, sys
from pathlib import Path
from tests.fast.users.test_registry import ONE, users
from solo5_systemd.base.errors import TakenError
from solo5_systemd.base.locks import LockedError
async def start(name):
    of = users(Path(sys.argv[1]))
    os.close((await of.acquire(name)).descriptor)
    try:
        await of.claim(name, ONE)
    except TakenError:
        await of.release(name)
    else:
        print(name)
async def main():
    await asyncio.gather(*(start(f"{sys.argv[2]}-{each}") for each in range(5)))
asyncio.run(main())
"""


def test_twenty_starts_of_four_processes_get_what_the_limit_permits(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    starts = [
        subprocess.Popen(
            [sys.executable, "-c", START, str(tmp_path), name], stdout=subprocess.PIPE, text=True, env=environment
        )
        for name in "abcd"
    ]
    started = [line for each in starts for line in each.communicate(timeout=60)[0].split()]
    assert len(started) == 5
    assert Registry().tasks() == sorted(started)
    assert total(tmp_path) == 5
    assert len({Registry().uid(TaskName(each)) for each in started}) == 5


async def test_a_start_waits_for_another_one_and_not_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocation, "LOCK_TIMEOUT_S", 0.05)
    of = users(tmp_path)
    os.close((await of.acquire(TaskName("web"))).descriptor)
    lock = os.open(tmp_path / "users", os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with pytest.raises(LockedError, match="users is locked by another process: expected it to be unlocked."):
        await of.claim(TaskName("web"), ONE)
    monkeypatch.setattr(allocation, "LOCK_TIMEOUT_S", 60.0)
    monkeypatch.setattr(allocation, "TASK_LOCK_TIMEOUT_S", 0.0)  # for another start of its own name
    waiting = asyncio.ensure_future(of.claim(TaskName("web"), ONE))
    await asyncio.sleep(0)
    os.close(lock)
    await waiting
    assert total(tmp_path) == 1
