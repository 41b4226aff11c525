"""One asyncio lock per key, such as per task: operations on one task are serialized, those on several are not."""

import asyncio
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

K = TypeVar("K", bound=Hashable)


class KeyedLocks(Generic[K]):
    """The locks of an event loop, used as `async with locks[key]`; a lock exists while it is held or waited for."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[K, asyncio.Lock] = WeakValueDictionary()

    def __getitem__(self, key: K) -> asyncio.Lock:
        """Return the lock of a key; the caller's `async with` keeps it alive."""
        return self._locks.setdefault(key, asyncio.Lock())

    def __iter__(self) -> Iterator[K]:
        """Iterate over the keys whose lock is held or waited for."""
        return iter(tuple(self._locks))
