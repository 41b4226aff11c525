"""All tasks whose consoles are forwarded: one reader of the journal, and each line to where it belongs."""

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice

from solo5_systemd.daemon import fdstore
from solo5_systemd.errors import HostError
from solo5_systemd.journal.export import Stream
from solo5_systemd.journal.lines import Line, Place
from solo5_systemd.journal.sdjournal import CONSOLES, JournalReader
from solo5_systemd.names import TaskName
from solo5_systemd.relay.lane import NOTHING, Lane
from solo5_systemd.relay.outlet import Outlet
from solo5_systemd.relay.record import Record
from solo5_systemd.relay.records import Records
from solo5_systemd.relay.refill import SLICE, OpenJournal, Refill

TICK = 0.02
"""Seconds between two looks into the journal when there was nothing new; a look takes some 30 microseconds."""

DRAIN_SECONDS = 10.0
"""How long the last lines of an ended task may wait for their reader."""

_log = logging.getLogger(__name__)


class Console:
    """One task's console: two outlets, and how far each has come."""

    def __init__(self, record: Record, gap: Place | None, forwarder: "Forwarder") -> None:
        self.task, self.unit, self.since = record.task, record.unit, record.since
        self.outlets = {
            stream: Outlet(Lane(progress=progress, gap=gap), lambda: forwarder.progressed(self))
            for stream, progress in record.progress.items()
        }
        self.refills = [
            (outlet, Refill(outlet.lane, self.unit, stream, self.since, forwarder.open_journal))
            for stream, outlet in self.outlets.items()
        ]

    def record(self) -> Record:
        progress = {stream: outlet.lane.progress for stream, outlet in self.outlets.items()}
        return Record(task=self.task, unit=self.unit, since=self.since, progress=progress)

    @property
    def is_behind(self) -> bool:
        """Some of its lines have to be read from the journal again."""
        return any(outlet.lane.gap is not None for outlet in self.outlets.values())

    def refill(self) -> bool:
        """Bring the lanes what they had passed over, if they are read; whether there may be more."""
        busy = False
        for outlet, refill in self.refills:
            if outlet.flows and refill.step():
                outlet.stir()
                busy = True
        return busy

    def close(self) -> None:
        for outlet, refill in self.refills:
            refill.close()
            outlet.close()


class Forwarder:
    """Forwards consoles while `run` runs.

    Args:
        records: where to keep how far each has come.
        open_journal: given matches, a reader of the journal.
    """

    def __init__(self, records: Records, open_journal: OpenJournal = JournalReader) -> None:
        self.open_journal = open_journal
        self._records = records
        self._consoles: dict[TaskName, Console] = {}
        self._by_unit: dict[str, Console] = {}
        self._behind: set[Console] = set()
        self._journal = open_journal(CONSOLES)
        self._journal.watch()
        self._last: Line | None = self._journal.seek_end()

    @property
    def tasks(self) -> Sequence[TaskName]:
        return sorted(self._consoles)

    @property
    def is_needed(self) -> bool:
        """Somebody's FIFO is held open here."""
        return any(outlet.is_open for console in self._consoles.values() for outlet in console.outlets.values())

    def restore(self, kept: Mapping[str, int]) -> None:
        """Go on from the records, with the descriptors that systemd has kept, which are ours now."""
        left = dict(kept)
        for record in self._records.load():
            console = self._add(record, self._last.place if self._last else None)
            for stream, outlet in console.outlets.items():
                fd = left.pop(_stored_name(stream, record.task), None)
                if fd is None:
                    outlet.lane.start_over()
                else:
                    outlet.open(fd)
        for name, fd in left.items():
            os.close(fd)
            fdstore.forget(name)

    def forward(self, task: TaskName, unit: str, since: int, fds: Mapping[Stream, int]) -> None:
        """Write a unit's lines to these descriptors, which stay the caller's.

        A task that is known goes on after the last line that it was given; of another one, the lines from `since`
        (microseconds since the epoch) on are written.
        """
        console = self._consoles.get(task)
        if console is None or console.unit != unit:
            console = self._add(self._beginning(task, unit, since), self._passed(since))
        self._records.save(console.record())
        for stream, fd in fds.items():
            mine = os.dup(fd)
            os.set_blocking(mine, False)
            fdstore.forget(_stored_name(stream, task))
            fdstore.store(_stored_name(stream, task), mine)
            console.outlets[stream].open(mine)
        self._behind.add(console)

    async def drain(self, task: TaskName) -> None:
        """Write all that the journal has of an ended task, as long as it is read; then close, and forget it."""
        console = self._consoles.get(task)
        if console is None:
            return
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                await self._catch_up()
                for outlet in console.outlets.values():
                    await outlet.settled.wait()
        except TimeoutError:
            _log.warning("The last lines of task %s were not read within %.0f seconds.", task, DRAIN_SECONDS)
        self._forget(console)

    async def run(self) -> None:
        """Forward, for ever.

        Raises:
            HostError: the journal cannot be read.
        """
        while True:
            self._journal.refresh()
            busy = self._follow()
            busy |= self._refill()
            await asyncio.sleep(0 if busy else TICK)

    def progressed(self, console: Console) -> None:
        """Keep how far a console has come; where that cannot be kept, lines would come twice after a restart."""
        with suppress(HostError):
            self._records.save(console.record())

    def close(self) -> None:
        """Let go of everything; FIFOs that systemd keeps stay open."""
        for console in self._consoles.values():
            console.close()
        self._journal.close()

    async def _catch_up(self) -> None:
        """Return when all that is in the journal by now was read."""
        more = True
        while more:
            more = self._follow()
            await asyncio.sleep(0)

    def _follow(self) -> bool:
        """Read a slice, and hand out its lines; whether there may be more."""
        lines = list(islice(iter(self._journal.next, None), SLICE))
        stirred = {outlet for line in lines if (outlet := self._offer(line)) is not None}
        for outlet in stirred:
            outlet.stir()
        return len(lines) == SLICE

    def _offer(self, line: Line) -> Outlet | None:
        """Give a line to its outlet, if it has one."""
        self._last = line
        console = self._by_unit.get(line.unit)
        if console is None or line.realtime < console.since:
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

    def _passed(self, since: int) -> Place | None:
        """Up to where lines of this time or later may have been read already, while nobody wanted them."""
        return self._last.place if self._last is not None and self._last.realtime >= since else None

    @staticmethod
    def _beginning(task: TaskName, unit: str, since: int) -> Record:
        return Record(task=task, unit=unit, since=since, progress=dict.fromkeys(Stream, NOTHING))

    def _add(self, record: Record, gap: Place | None) -> Console:
        if record.task in self._consoles:
            self._forget(self._consoles[record.task])
        console = Console(record, gap, self)
        self._consoles[console.task] = self._by_unit[console.unit] = console
        self._behind.add(console)
        return console

    def _forget(self, console: Console) -> None:
        del self._consoles[console.task], self._by_unit[console.unit]
        self._behind.discard(console)
        console.close()
        for stream in Stream:
            fdstore.forget(_stored_name(stream, console.task))
        self._records.remove(console.task)


def _stored_name(stream: Stream, task: TaskName) -> str:
    return f"{stream}-{task}"
