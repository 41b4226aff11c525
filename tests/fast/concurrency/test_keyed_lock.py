"""A key's lock serializes the operations on this key alone, and exists no longer than these."""

import asyncio
import gc

import pytest

from solo5_systemd.concurrency.keyed_lock import KeyedLocks


async def test_operations_on_one_key_are_serialized_and_those_on_another_are_not() -> None:
    locks = KeyedLocks[str]()
    events: list[str] = []
    release, other = asyncio.Event(), asyncio.Event()

    async def operate(key: str, name: str) -> None:
        async with locks[key]:
            gc.collect()  # the lock is kept alive by `async with` alone
            events.append(f"{name} begins")
            await release.wait() if key == "a" else other.set()
            events.append(f"{name} ends")

    async with asyncio.TaskGroup() as group:
        for key, name in (("a", "first"), ("a", "second"), ("b", "other")):
            group.create_task(operate(key, name))
        await other.wait()
        assert events == ["first begins", "other begins", "other ends"]
        assert list(locks) == ["a"]
        release.set()
    assert events[3:] == ["first ends", "second begins", "second ends"]
    assert list(locks) == []


async def test_a_failed_operation_releases_the_lock() -> None:
    locks = KeyedLocks[str]()

    async def fail() -> None:
        async with locks["a"]:
            raise ValueError

    with pytest.raises(ValueError):
        await fail()
    async with locks["a"]:
        assert list(locks) == ["a"]
    assert list(locks) == []
