"""All tasks whose consoles are forwarded: one reader of each journal, and each line to where it belongs."""

import asyncio
import logging
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count

from solo5_systemd.errors import HostError, Solo5Error
from solo5_systemd.journal.export import Stream
from solo5_systemd.journal.lines import Gap, Line, Place
from solo5_systemd.journal.reader import JournalReader
from solo5_systemd.names import TaskName
from solo5_systemd.relay import fdstore_names, journal_catchup
from solo5_systemd.relay.fdstore_names import Kept
from solo5_systemd.relay.fifo_writer import Outlet
from solo5_systemd.relay.journal_catchup import SLICE, OpenJournal
from solo5_systemd.relay.journal_follower import Follower
from solo5_systemd.relay.state import Delivery, Record
from solo5_systemd.relay.state_files import Records
from solo5_systemd.relay.task_console import Console

TICK = 0.02
"""Seconds between two looks into the journal when there was nothing new; a look takes some 30 microseconds."""

SWEEP = 10.0
"""Seconds between two looks for consoles that nobody can read any more, and whose end nobody has told."""

_log = logging.getLogger(__name__)


class Forwarder:
    """Forwards consoles while `run` runs.

    Args:
        records: where to keep how far each has come.
        open_journal: given matches and a namespace, a reader of that journal.

    Attributes:
        gaps: lines that journald has left out, and of which the task's reader was given notice.
    """

    def __init__(self, records: Records, open_journal: OpenJournal = JournalReader) -> None:
        self._open_journal = open_journal
        self.gaps: asyncio.Queue[Gap] = asyncio.Queue()
        self._records = records
        self._consoles: dict[TaskName, Console] = {}
        self._by_unit: dict[tuple[str, str], Console] = {}
        self._behind: set[Console] = set()
        self._ended: set[Console] = set()
        self._followers: dict[str, Follower] = {}
        self._follower("")

    @property
    def tasks(self) -> Sequence[TaskName]:
        """Those whose FIFOs are held open here."""
        return sorted(task for task, console in self._consoles.items() if console.is_open)

    @property
    def is_needed(self) -> bool:
        return bool(self.tasks)

    def restore(self, kept: Mapping[str, int]) -> None:
        """Go on from the records, with the descriptors that systemd has kept, which are ours now."""
        descriptors = Kept(kept)
        for record in sorted(self._records.load(), key=lambda record: record.number == 0):
            if record.number == 0:  # an earlier version's
                record = replace(record, number=self._free_number())
            console = self._add(record, self._follower(record.namespace).place, descriptors)
            self._records.save(console.record)
            for stream, outlet in console.outlets.items():
                fifo = descriptors.take_fifo(record.number, stream)
                if fifo is not None:
                    outlet.open(fifo)
        descriptors.drop()

    def forward(self, task: TaskName, unit: str, since: int, fds: Mapping[Stream, int], namespace: str = "") -> None:
        """Write a unit's lines to these descriptors, which stay the caller's.

        A task that is known goes on after the last byte that it was given; of another one, the lines from `since`
        (microseconds since the epoch) on are written.

        Raises:
            HostError: its record cannot be written; nothing of it is left.
        """
        console = self._consoles.get(task)
        if console is None or (console.unit, console.namespace) != (unit, namespace):
            console = self._begin(task, unit, since, namespace)
        else:
            self._set_ended(console, ended=False)
        for stream, fd in fds.items():
            mine = os.dup(fd)
            os.set_blocking(mine, False)
            fdstore_names.store_fifo(console.number, stream, mine)
            console.outlets[stream].open(mine)
        self._behind.add(console)

    async def drain(self, task: TaskName) -> bool:
        """Deliver what the journal has by now of a task that has ended; then close its FIFOs, and forget it.

        Returns:
            Whether that is done. Where it has to wait for a reader, it is done when there is one; where there is no
            FIFO, there is nothing to wait for.
        """
        console = self._consoles.get(task)
        if console is None:
            return True
        await self._catch_up(self._follower(console.namespace))
        if self._consoles.get(task) is console:
            self._set_ended(console, ended=True)
            if not console.is_open:
                self._forget(console)
            self._close_ended()
        return task not in self._consoles

    async def run(self) -> None:
        """Forward, for ever.

        Raises:
            HostError: the journal cannot be read.
        """
        loop = asyncio.get_running_loop()
        swept = loop.time()
        while True:
            busy = False
            for follower in list(self._followers.values()):
                busy |= self._follow(follower)
            busy |= self._refill()
            self._close_ended()
            if loop.time() >= swept + SWEEP:
                swept = loop.time()
                self._sweep()
            await asyncio.sleep(0 if busy else TICK)

    def close(self) -> None:
        """Let go of everything; what systemd keeps stays open."""
        for console in self._consoles.values():
            console.close()
        self._records.close()
        for follower in self._followers.values():
            asyncio.get_running_loop().remove_reader(follower.news)
            follower.close()

    def _follower(self, namespace: str) -> Follower:
        """Return what follows a journal, from now on where none has followed it before."""
        if namespace not in self._followers:
            follower = self._followers[namespace] = Follower(self._open_journal, namespace)
            # A file that was just put aside may be removed within milliseconds: `journalctl --rotate --vacuum-files=1`.
            asyncio.get_running_loop().add_reader(follower.news, self._follow_news, follower)
        return self._followers[namespace]

    async def _catch_up(self, follower: Follower) -> None:
        """Return when all that is in a journal by now was read."""
        now = time.monotonic_ns() // 1000
        more = True
        while more:
            more = self._follow(follower) and follower.last is not None and follower.last.place.monotonic <= now
            await asyncio.sleep(0)

    def _follow(self, follower: Follower) -> bool:
        """Read a slice, and hand out its lines; whether there may be more."""
        lines = follower.slice()
        stirred = {outlet for line in lines if (outlet := self._offer(line, follower.namespace)) is not None}
        for outlet in stirred:
            outlet.stir()
        return len(lines) >= SLICE

    def _follow_news(self, follower: Follower) -> None:
        with suppress(HostError):  # `run` meets it too, and ends with it
            self._follow(follower)

    def _offer(self, line: Line, namespace: str) -> Outlet | None:
        """Give a line to its outlet, if it has one."""
        console = self._by_unit.get((namespace, line.unit))
        if console is None or line.place.monotonic < console.began:
            return None
        outlet = console.outlets[line.stream]
        outlet.offer(line)
        if outlet.lane.gap is not None:
            self._behind.add(console)
        return outlet

    def _refill(self) -> bool:
        """Let those catch up that are behind; whether there may be more."""
        busy = [console.refill() for console in self._behind]
        self._behind = {console for console in self._behind if console.is_behind}
        return any(busy)

    def _begin(self, task: TaskName, unit: str, since: int, namespace: str) -> Console:
        record = Record(
            task=task,
            unit=unit,
            since=since,
            began=max(0, journal_catchup.monotonic(since)),
            streams=dict.fromkeys(Stream, Delivery()),
            number=self._free_number(),
            namespace=namespace,
        )
        console = self._add(record, self._follower(namespace).passed(record.began), Kept({}))
        try:
            self._records.save(record)
        except Solo5Error:
            self._forget(console)
            raise
        return console

    def _free_number(self) -> int:
        """One that no record has; small, since it stands in names."""
        taken = {console.number for console in self._consoles.values()}
        return next(number for number in count(1) if number not in taken)

    def _add(self, record: Record, gap: Place | None, kept: Kept) -> Console:
        """A console that goes on from a record, with the staging pipes that were kept for it."""
        if record.task in self._consoles:
            self._forget(self._consoles[record.task])
        console = Console(record, gap, kept, self._keep, self._open_journal)
        self._consoles[console.task] = self._by_unit[console.namespace, console.unit] = console
        self._behind.add(console)
        if console.ended:
            self._ended.add(console)
        return console

    def _keep(self, console: Console) -> None:
        """Keep how far a console has come; where that cannot be kept, lines would come twice after a restart."""
        with suppress(HostError):
            self._records.save(console.record)
        if lines := console.take_left_out():
            self.gaps.put_nowait(Gap(task=console.task, lines=lines))

    def _set_ended(self, console: Console, *, ended: bool) -> None:
        (self._ended.add if ended else self._ended.discard)(console)
        if console.ended is not ended:  # the age of the record is the time since the last delivery
            console.ended = ended
            self._records.save(console.record)

    def _close_ended(self) -> None:
        for console in [each for each in self._ended if each.is_over]:
            if not console.is_done:
                _log.warning("The last lines of task %s were not read: nobody reads its FIFO any more.", console.task)
            self._forget(console)

    def _sweep(self) -> None:
        """Let go of consoles whose FIFOs were removed: their tasks' owner is gone, or could not reach us."""
        for console in [each for each in self._consoles.values() if each.is_abandoned]:
            _log.info("The console of task %s is let go: nobody can read its FIFOs any more.", console.task)
            self._forget(console)

    def _forget(self, console: Console) -> None:
        del self._consoles[console.task], self._by_unit[console.namespace, console.unit]
        self._behind.discard(console)
        self._ended.discard(console)
        console.close()
        fdstore_names.forget(console.number)
        self._records.remove(console.task)
