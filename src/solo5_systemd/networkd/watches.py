"""Watches of what other programs change: links, addresses and nftables, and of the packets for sleeping tasks."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from solo5_systemd.network.kernel_events import AnnouncedPackets, LinkWatch, Packets, RulesetWatch
from solo5_systemd.network.overview import Repair
from solo5_systemd.networkd.state import NetworkState

_log = logging.getLogger(__name__)

Heard: TypeAlias = Callable[[Packets | None, NetworkState], None]
"""Called with the packets that are announced in a namespace; None: some were lost."""

_Watch: TypeAlias = LinkWatch | RulesetWatch | AnnouncedPackets


class Watches:
    """What has changed since the last repair, and the repairs that are to be signalled.

    Each namespace has netlink sockets of its own, since the kernel sends no message of one to another. A socket keeps
    its namespace alive.

    Attributes:
        wake: set when something changes or is repaired.
        rules: nftables, where the tables have no owner.
        links: names of expected links; None: unknown, after lost netlink messages.
        namespaces: the paths of other namespaces in which something changed.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.wake = asyncio.Event()
        self.rules = False
        self.links: frozenset[str] | None = frozenset()
        self.namespaces: set[str] = set()
        self.repairs: deque[Repair] = deque()
        self._callees: tuple[Heard, ...] = ()
        self._open: dict[str, Sequence[_Watch]] = {}

    @contextmanager
    def open(self, host: NetworkState, *heard: Heard) -> Iterator[None]:
        """Watch the host's network namespace for the block."""
        self._callees = heard
        self.add(host)
        try:
            yield
        finally:
            self.remove("")

    def add(self, state: NetworkState) -> None:
        """Watch a namespace; called in a thread that is in it."""
        self._open[state.namespace] = watches = _watches(rules=not state.tables.owned)
        state.sleepers.announces &= isinstance(watches[-1], AnnouncedPackets)
        self._loop.call_soon_threadsafe(self._start, state, watches)

    def remove(self, path: str) -> None:
        """End the watch of a namespace; called in any thread."""
        self._loop.call_soon_threadsafe(self._end, self._open.pop(path))

    def report(self, repair: Repair) -> None:
        """Have a repair signalled; called in the writer thread."""
        self.repairs.append(repair)
        self._loop.call_soon_threadsafe(self.wake.set)

    def _start(self, state: NetworkState, watches: Sequence[_Watch]) -> None:
        for watch in watches:
            self._loop.add_reader(watch.fileno(), self._on_readable, state, watch)

    def _end(self, watches: Sequence[_Watch]) -> None:
        for watch in watches:
            self._loop.remove_reader(watch.fileno())
            watch.close()

    def _on_readable(self, state: NetworkState, watch: _Watch) -> None:
        if isinstance(watch, AnnouncedPackets):
            found = watch.packets()
            for callee in self._callees:  # if none, the first check of sleeping tasks counts them
                callee(found, state)
        elif state.namespace:
            if (changed := watch.changed()) or changed is None:  # None: messages were lost
                self.namespaces.add(state.namespace)
                self.wake.set()
        elif isinstance(watch, LinkWatch):
            changed = watch.changed()
            if changed is not None and not any(map(state.repairs.is_expected, changed)):
                return  # taps of released tasks, or links of other programs
            self.links = None if changed is None or self.links is None else self.links | changed
            self.wake.set()
        elif watch.changed():
            self.rules = True
            self.wake.set()


def _watches(*, rules: bool) -> Sequence[_Watch]:
    """Return the watches of the calling thread's namespace, of which that for packets is the last, if there is one.

    `rules`: watch nftables, too: others can change the tables.
    """
    found: list[_Watch] = [LinkWatch(), *((RulesetWatch(),) if rules else ())]
    try:
        found.append(AnnouncedPackets())
    except OSError as error:  # the kernel lacks nfnetlink_log, or another program has the group
        _log.info("no task sleeps, since no packets are announced: %s", error.strerror)
    return found
