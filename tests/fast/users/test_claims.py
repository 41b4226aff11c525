"""Claims of tasks: never beyond a limit together, and gone with the task's user."""

import asyncio
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from solo5_systemd.errors import TakenError
from solo5_systemd.names import TaskName
from solo5_systemd.settings.limits import Claim, Node, Resource, Scope, tenant
from solo5_systemd.users import registry
from solo5_systemd.users.claims import Claims
from solo5_systemd.users.registry import Users

WEB = tenant("shop", "web")
ONE = Claim(tenant=WEB, amounts={Resource.TASKS: 1})
NODE = Node(capacity={Resource.TASKS: 50})
"""A job has five tasks."""


def users(root: Path) -> Users:
    found = Users(
        lambda: range(61200, 61250),
        lambda *_: None,
        root / "users",
        root / "userdb",
        root / "notes",
        root / "dynamic-uid",
        lambda: NODE,
    )
    found._resolved = True  # NSS does not have the records of this directory
    return found


def total(root: Path) -> int:
    """Return how many tasks have a claim, as another process reads it."""
    with Claims(root / "users").others("") as totals:
        return totals.of(WEB, Scope.JOB).get(Resource.TASKS, 0)


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
    assert not list((tmp_path / "users/.claims").iterdir())


async def test_a_start_by_root_reads_no_other_claim_without_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = users(tmp_path)
    os.close((await of.acquire(TaskName("web"))).descriptor)
    await of.claim(TaskName("web"), ONE)
    read: list[object] = []
    real = Claims._read

    def counted(claims: Claims, *, prune: bool) -> None:
        read.append(prune)
        real(claims, prune=prune)

    monkeypatch.setattr(Claims, "_read", counted)
    of.check_claim(TaskName("root"), Claim(amounts={Resource.TASKS: 1}))
    assert read == []
    of.check_claim(TaskName("root"), Claim(amounts={Resource.COPIES: 1}))
    assert len(read) == 1


async def test_an_ended_task_that_keeps_its_user_has_no_claim(tmp_path: Path) -> None:
    of = users(tmp_path)
    os.close((await of.acquire(TaskName("web"))).descriptor)
    await of.claim(TaskName("web"), ONE)
    of.end_claim(TaskName("web"))
    of.end_claim(TaskName("web"))
    assert total(tmp_path) == 0


async def test_what_a_killed_process_has_left_counts_no_more_and_is_removed(tmp_path: Path) -> None:
    of = users(tmp_path)
    os.close((await of.acquire(TaskName("web"))).descriptor)
    claims = tmp_path / "users/.claims"
    claims.mkdir()
    for number in range(5):
        (claims / f"gone-{number}").symlink_to(ONE.to_text())
    (claims / "web").symlink_to("damaged")
    assert total(tmp_path) == 0
    await of.claim(TaskName("web"), ONE)
    assert [each.name for each in claims.iterdir()] == ["web"]
    assert total(tmp_path) == 1


START = """
import asyncio, os, sys
from pathlib import Path
from tests.fast.users.test_claims import ONE, users
from solo5_systemd.errors import TakenError
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
    assert sorted(each.name for each in (tmp_path / "users/.claims").iterdir()) == sorted(started)


async def test_a_start_waits_for_another_one_and_not_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "LOCK_TIMEOUT_S", 0.05)
    of = users(tmp_path)
    os.close((await of.acquire(TaskName("web"))).descriptor)
    lock = os.open(tmp_path / "users/.claims.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with pytest.raises(TakenError, match="waited 0.05 seconds for other starts"):
        await of.claim(TaskName("web"), ONE)
    monkeypatch.setattr(registry, "LOCK_TIMEOUT_S", 60.0)
    waiting = asyncio.ensure_future(of.claim(TaskName("web"), ONE))
    await asyncio.sleep(0)
    os.close(lock)
    await waiting
    assert total(tmp_path) == 1
