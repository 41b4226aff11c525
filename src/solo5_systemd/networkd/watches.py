"""Watches of what other programs change in the network: links, addresses, nftables, other namespaces."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from typing import TypeAlias, TypeVar

from solo5_systemd.network.announcements import AnnouncedPackets, Packets
from solo5_systemd.network.link_watches import LinkWatch
from solo5_systemd.network.nft_tables import RulesetWatch
from solo5_systemd.networkd.state import NetworkState

_log = logging.getLogger(__name__)

Announced: TypeAlias = Callable[[Mapping[str, str] | None, str], None]
"""Called with the packets for sleeping tasks, by tap, in a namespace; None: some were lost."""

Heard: TypeAlias = Callable[[Packets], None]
"""Called with what guests ask and answer in the host's own namespace."""

W = TypeVar("W", LinkWatch, RulesetWatch, AnnouncedPackets)


class Watches:
    """What has changed since the last repair.

    Attributes:
        wake: set when something changes.
        rules: nftables, where the tables have no owner.
        links: names of expected links; None: unknown, after lost netlink messages.
        namespaces: the paths of other namespaces in which something changed.
    """

    def __init__(self) -> None:
        self.wake = asyncio.Event()
        self.rules = False
        self.links: frozenset[str] | None = frozenset()
        self.namespaces: set[str] = set()
        self._callees: tuple[Announced, Heard] | None = None

    @contextmanager
    def open(self, host: NetworkState, announced: Announced, heard: Heard) -> Iterator[None]:
        """Watch the host's network namespace for the block."""
        self._callees = announced, heard
        self._is_expected = host.repairs.is_expected
        with ExitStack() as stack:
            _watch(stack, LinkWatch(), self._on_links)
            if not host.repairs.owns_tables:
                _watch(stack, RulesetWatch(), self._on_rules)
            try:
                _watch(stack, AnnouncedPackets(), self.on_packets)
            except OSError as error:  # the kernel lacks nfnetlink_log, or another program has the group
                _log.info("no task sleeps, since no packets are announced: %s", error.strerror)
                host.sleepers.announces = False
            yield

    def on_packets(self, announced: AnnouncedPackets, path: str = "") -> None:
        """Pass on the packets for sleeping tasks in a namespace; empty: the host's own."""
        found = announced.packets()
        if self._callees is None:  # the first check of sleeping tasks counts them, and a question is repeated
            return
        of_sleeping, of_waiting = self._callees
        of_sleeping(found.by_tap if found is not None else None, path)
        if found is not None and not path:
            of_waiting(found)

    def on_namespace(self, path: str) -> None:
        """Note a change in another namespace."""
        self.namespaces.add(path)
        self.wake.set()

    def _on_rules(self, watch: RulesetWatch) -> None:
        if watch.changed():
            self.rules = True
            self.wake.set()

    def _on_links(self, watch: LinkWatch) -> None:
        changed = watch.changed()
        if changed is not None and not any(map(self._is_expected, changed)):
            return  # taps of released tasks, or links of other programs
        if changed is None or self.links is None:
            self.links = None
        else:
            self.links |= changed
        self.wake.set()


def _watch(stack: ExitStack, watch: W, on_change: Callable[[W], None]) -> None:
    """Call a function when a watch is readable, until the stack is closed."""
    loop = asyncio.get_running_loop()
    stack.enter_context(closing(watch))
    loop.add_reader(watch.fileno(), on_change, watch)
    stack.callback(loop.remove_reader, watch.fileno())
