"""Watches for changes of links, addresses and rules, and for packets of sleeping tasks, in other network namespaces."""

import asyncio
from collections.abc import Callable
from contextlib import closing, suppress

from solo5_systemd.network.announcements import AnnouncedPackets
from solo5_systemd.network.link_watches import LinkWatch
from solo5_systemd.network.namespaces import NetworkNamespace
from solo5_systemd.network.nft_tables import RulesetWatch

_Watch = LinkWatch | RulesetWatch | AnnouncedPackets


class NamespaceWatches:
    """Netlink sockets of namespaces, since the kernel sends no message of one to another.

    They are opened and closed in the writer thread, and read by the event loop. A socket keeps its namespace alive.

    Args:
        changed: called in it with the path of a namespace in which a link was removed or set down, an address was
            removed, or this service's rules were changed.
        announced: called in it with the path of a namespace in which packets for sleeping tasks are announced.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        changed: Callable[[str], None],
        announced: Callable[[AnnouncedPackets, str], None],
    ) -> None:
        self._loop = loop
        self._changed = changed
        self._announced = announced
        self._open: dict[str, tuple[_Watch, ...]] = {}

    def open(self, path: str, *, rules: bool) -> None:
        """Watch a namespace; nothing is done for one that is watched.

        Args:
            rules: watch nftables, too: others can change the tables.

        Raises:
            HostError: the namespace does not exist.
        """
        if path in self._open:
            return
        with closing(NetworkNamespace(path)) as namespace, namespace.entered():
            watches: list[_Watch] = [LinkWatch(), *((RulesetWatch(),) if rules else ())]
            with suppress(OSError):  # the kernel lacks nfnetlink_log: no task sleeps
                watches.append(AnnouncedPackets())
        self._open[path] = tuple(watches)
        self._loop.call_soon_threadsafe(self._start, path, self._open[path])

    def close(self, path: str) -> None:
        """End the watch of a namespace; idempotent."""
        if path in self._open:
            self._loop.call_soon_threadsafe(self._end, self._open.pop(path))

    def _start(self, path: str, watches: tuple[_Watch, ...]) -> None:
        for watch in watches:
            self._loop.add_reader(watch.fileno(), self._on_readable, path, watch)

    def _end(self, watches: tuple[_Watch, ...]) -> None:
        for watch in watches:
            self._loop.remove_reader(watch.fileno())
            watch.close()

    def _on_readable(self, path: str, watch: _Watch) -> None:
        if isinstance(watch, AnnouncedPackets):
            self._announced(watch, path)
            return
        found = watch.changed()
        if found or found is None:  # None: messages were lost
            self._changed(path)
