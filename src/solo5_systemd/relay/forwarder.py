"""Forwards the consoles of all tasks: follows each journal once, and distributes its lines to the FIFOs."""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count

from solo5_systemd.base.errors import HostError, Solo5Error
from solo5_systemd.base.names import TaskName
from solo5_systemd.dbus import fdstore
from solo5_systemd.journal.lines import JournalPosition, Stream
from solo5_systemd.journal.reader import JournalReader, PollTimer
from solo5_systemd.relay.fifo_writer import FifoWriter, stored_name
from solo5_systemd.relay.state_files import ConsoleState, Delivery, StateFiles
from solo5_systemd.relay.task_console import ALL_MATCHES, OpenJournal, TaskConsole, to_monotonic

BATCH_SIZE = 400
"""Lines to read before other consoles get their turn: some milliseconds."""

UNREACHABLE_CHECK_INTERVAL_S = 10.0
"""Between two checks for consoles whose FIFOs were unlinked without a Drain."""

SILENT_INTERVAL_S = 2.0
"""Between two polls of the journals while no guest writes: libsystemd's own limit for a signal that does not come
(sd_journal_wait(3))."""

_log = logging.getLogger(__name__)


class Forwarder:
    """Forwards consoles while `run` runs.

    Each journal namespace has a reader of its own: sd_journal skips an entry whose time is before its position, such as
    one of another journald that writes concurrently.

    Args:
        report: called with the number of a task's lines that journald dropped; their notice is in its stderr already.
    """

    def __init__(
        self,
        state_files: StateFiles,
        report: Callable[[TaskName, int], None],
        open_journal: OpenJournal = JournalReader,
        timer: PollTimer | None = None,
    ) -> None:
        self._open_journal = open_journal
        self._timer = timer or PollTimer(silent_interval_s=SILENT_INTERVAL_S)
        self._report = report
        self._state_files = state_files
        self._consoles: dict[TaskName, TaskConsole] = {}
        self._by_unit: dict[tuple[str, str], TaskConsole] = {}
        self._catching_up: dict[TaskConsole, None] = {}  # in turn
        self._journals: dict[str, JournalReader] = {}  # by namespace; empty: the host's
        self._positions: dict[str, JournalPosition | None] = {}  # of the last line in each; None: it was empty
        self._last_position("")  # from before the first call

    @property
    def tasks(self) -> Sequence[TaskName]:
        """The tasks whose FIFOs are open, sorted; the relay has to stay while there are any."""
        return sorted(task for task, console in self._consoles.items() if console.is_open)

    def restore(self, stored: Mapping[str, Sequence[int]]) -> None:
        """Restore all consoles from the state files and the fd store, whose descriptors the forwarder closes."""
        left = dict(stored)
        for state in self._state_files.load():
            name, ends = stored_name(state.number), dict[Stream, tuple[int, int]]()
            if len(left.get(name, ())) == 2 * len(Stream):
                each = iter(left.pop(name))
                ends = {stream: (next(each), next(each)) for stream in Stream}
            staging = {stream: pipe for stream, (_, pipe) in ends.items()} or None
            console = self._add(state, self._last_position(state.namespace), staging)
            self._save(console)
            for stream, (fifo, _) in ends.items():
                console.writers[stream].open(fifo)
        for name, fds in left.items():  # a Forward or a removal was interrupted, or the state file is missing
            for fd in fds:
                os.close(fd)
            fdstore.remove(name)

    def forward(self, task: TaskName, unit: str, since: int, fds: Mapping[Stream, int], namespace: str = "") -> None:
        """Forward a unit's lines to these FIFOs, one of each stream; the descriptors are duplicated.

        If the task is forwarded already, it continues after the last byte delivered; otherwise with the lines from
        `since` (µs since the epoch). Raises HostError if the state cannot be saved: the task is not forwarded.
        """
        console = self._consoles.get(task)
        if console is None or (console.unit, console.namespace) != (unit, namespace):
            console = self._create(task, unit, since, namespace)
        fifos = {stream: os.dup(fd) for stream, fd in fds.items()}
        for fifo in fifos.values():
            os.set_blocking(fifo, False)
        used = {each.number for each in self._consoles.values()}
        # A low one: names in the fd store are short.
        replaced, console.number = console.number, next(number for number in count(1) if number not in used)
        console.ended = False
        stored = [fd for stream in Stream for fd in (fifos[stream], console.writers[stream].staging)]
        fdstore.store(stored_name(console.number), stored)
        try:  # of two that are stored, a restarted relay takes the one that the state names
            self._state_files.save(console.state)
        except Solo5Error:
            for fifo in fifos.values():
                os.close(fifo)
            if replaced:  # it goes on with the FIFOs that it has
                fdstore.remove(stored_name(console.number))
                console.number = replaced
            else:
                self._remove(console)
            raise
        if replaced:
            fdstore.remove(stored_name(replaced))
        for stream, fifo in fifos.items():  # only now: bytes in a FIFO that is not stored would be lost with a kill
            console.writers[stream].open(fifo)
        self._catching_up[console] = None
        self._timer.restart()

    async def drain(self, task: TaskName) -> bool:
        """Deliver all lines of an ended task that are in the journal now, then close its FIFOs and remove its state.

        False: a FIFO is full or has no reader, and it is done as soon as the FIFO was read.
        """
        console = self._consoles.get(task)
        if console is None:
            return True
        now, more = time.monotonic_ns() // 1000, True
        while more:
            more = self._forward_batch(console.namespace)
            last = self._last_position(console.namespace)
            more &= last is None or last.monotonic <= now  # other tasks may write without end
            await asyncio.sleep(0)
        if self._consoles.get(task) is console:  # else `run` has closed it meanwhile
            if not console.ended:  # else not saved: the file's mtime is the time of the last delivery
                console.ended = True
                self._state_files.save(console.state)
            if not console.is_open:
                self._remove(console)
            self._close_finished()
        return task not in self._consoles

    async def run(self) -> None:
        """Forward until cancelled; raises HostError where the journal cannot be read."""
        loop = asyncio.get_running_loop()
        checked = loop.time()
        while True:
            busy = False
            for namespace in list(self._journals):
                busy |= self._forward_batch(namespace)
            busy |= self._catch_up()
            self._close_finished()
            if loop.time() >= checked + UNREACHABLE_CHECK_INTERVAL_S:
                checked = loop.time()
                # The client that would have called Drain is not there any more.
                for console in [each for each in self._consoles.values() if each.is_unreachable]:
                    _log.info("stopped forwarding the console of task %s, its FIFOs were removed", console.task)
                    self._remove(console)
            if busy:
                await asyncio.sleep(0)
            else:
                await self._timer.wait([journal.watch() for journal in self._journals.values()])

    def close(self) -> None:
        """Close all consoles, files and journals; the copies in systemd's fd store stay open."""
        for console in self._consoles.values():
            console.close()
        self._state_files.close()
        for journal in self._journals.values():
            journal.close()

    def _last_position(self, namespace: str) -> JournalPosition | None:
        """Return the position of the last line that was read of a journal; a new reader starts at its end."""
        if namespace not in self._journals:
            journal = self._open_journal(ALL_MATCHES, namespace)
            journal.watch()
            self._positions[namespace] = next((line.position for line, _ in journal.last(1)), None)
            self._journals[namespace] = journal
        return self._positions[namespace]

    def _forward_batch(self, namespace: str) -> bool:
        """Read a batch of lines and forward them; return whether there may be more."""
        lines = self._journals[namespace].read_batch(BATCH_SIZE)
        if lines:
            self._positions[namespace] = lines[-1].position
            self._timer.restart()
        writers: set[FifoWriter] = set()
        for line in lines:
            console = self._by_unit.get((namespace, line.unit))
            if console is not None and line.position.monotonic >= console.since_monotonic:  # not of an earlier run
                writer = console.writers[line.stream]
                writer.offer(line)
                writers.add(writer)
                if writer.queue.catch_up_to is not None:
                    self._catching_up[console] = None
        for writer in writers:
            writer.pump()
        return len(lines) >= BATCH_SIZE

    def _catch_up(self) -> bool:
        """Let the next console that has skipped lines, and room, read some; return whether there was one."""
        busy = False
        for console in list(self._catching_up):
            busy = console.catch_up()
            if busy or not console.is_catching_up:
                del self._catching_up[console]
            if console.is_catching_up:
                self._catching_up[console] = None  # behind the others, if it has read
            if busy:
                break
        if any(console.has_reader for console in self._catching_up):
            self._timer.restart()  # its next lines are read when its FIFO has room
        return busy

    def _create(self, task: TaskName, unit: str, since: int, namespace: str) -> TaskConsole:
        state = ConsoleState(
            task=task,
            unit=unit,
            since=since,
            began=max(0, to_monotonic(since)),
            progress=dict.fromkeys(Stream, Delivery()),
            namespace=namespace,
        )
        last = self._last_position(namespace)
        # The reader may have passed lines of this run before the call.
        return self._add(state, last if last is not None and last.monotonic >= state.began else None)

    def _add(
        self, state: ConsoleState, catch_up_to: JournalPosition | None, staging: Mapping[Stream, int] | None = None
    ) -> TaskConsole:
        """Add a console with this state, in the place of an earlier one of the same task."""
        if state.task in self._consoles:
            self._remove(self._consoles[state.task])
        console = TaskConsole(state, catch_up_to, staging, self._save, self._open_journal)
        self._consoles[console.task] = self._by_unit[console.namespace, console.unit] = console
        self._catching_up[console] = None
        return console

    def _save(self, console: TaskConsole) -> None:
        with suppress(HostError):  # lines are duplicated after a restart, but forwarding goes on
            self._state_files.save(console.state)
        for queue in (writer.queue for writer in console.writers.values()):
            if queue.catch_up_to is not None:  # lines that were in memory are to be read again
                self._catching_up[console] = None
            if queue.dropped:
                self._report(console.task, queue.dropped)
                queue.dropped = 0

    def _close_finished(self) -> None:
        for console in [each for each in self._consoles.values() if each.is_finished]:
            if not console.is_delivered:
                _log.warning("last lines of task %s not delivered, its FIFO was removed", console.task)
            self._remove(console)

    def _remove(self, console: TaskConsole) -> None:
        del self._consoles[console.task], self._by_unit[console.namespace, console.unit]
        self._catching_up.pop(console, None)
        console.close()
        fdstore.remove(stored_name(console.number))
        self._state_files.remove(console.task)
