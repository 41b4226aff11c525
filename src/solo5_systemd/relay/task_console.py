"""The console of one task: for each stream a FIFO writer, and a reader of the lines that its queue has skipped."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial

from solo5_systemd.journal.lines import JournalPosition, Stream
from solo5_systemd.journal.reader import CONSOLE_MATCHES, JournalReader, console_matches
from solo5_systemd.relay.fifo_writer import FifoWriter, open_staging_pipe
from solo5_systemd.relay.line_queue import removed_notice
from solo5_systemd.relay.state_files import ConsoleState

DROPPED_MATCHES = ("MESSAGE_ID=a596d6fe7bfa4994828e72309e95d61e", "_TRANSPORT=driver")
"""Matches journald's messages about lines that it dropped: SD_MESSAGE_JOURNAL_DROPPED of sd-messages(3), from journald
itself. It writes one when it accepts lines of the unit again, before the first of them and for stdout and stderr apart;
never, if no line follows. There is no message about lines of removed files (vacuuming): the relay counts these."""

ALL_MATCHES = (*CONSOLE_MATCHES, "+", *DROPPED_MATCHES)
"""Matches the lines of all tasks, and journald's messages about dropped lines."""

OpenJournal = Callable[[Sequence[str], str], JournalReader]
"""Opens a reader, given matches and a journal namespace; empty: the host's journal."""


def clock_times() -> tuple[int, int]:
    """Return (CLOCK_REALTIME, CLOCK_MONOTONIC) in µs."""
    # First: a preemption in between can only make the moment look earlier.
    since_boot = time.monotonic_ns() // 1000
    return time.time_ns() // 1000, since_boot


def to_monotonic(realtime: int) -> int:
    """Convert a past CLOCK_REALTIME to CLOCK_MONOTONIC, both in µs; negative: before boot.

    The start of a task is passed and searched for by CLOCK_REALTIME, and compared by CLOCK_MONOTONIC: the former may be
    set back while a task runs, and later lines of the task would seem to be older than the task.
    """
    since_epoch, since_boot = clock_times()
    return since_boot - max(0, since_epoch - realtime)


def earliest_realtime(realtime: int, since_boot: int) -> int:
    """Return a CLOCK_REALTIME in µs before which no line since this moment is, however the clock was set meanwhile."""
    epoch_now, boot_now = clock_times()
    return min(realtime, epoch_now - (boot_now - since_boot))


def matches(unit: str, stream: Stream) -> Sequence[str]:
    """Return the matches for one stream of a unit; stderr includes journald's messages about dropped lines."""
    dropped = ("+", *DROPPED_MATCHES, f"OBJECT_SYSTEMD_UNIT={unit}") if stream is Stream.STDERR else ()
    return (*console_matches(unit, stream), *dropped)


class TaskConsole:
    """The console of one task.

    Args:
        catch_up_to: as of `LineQueue`.
        staging: the pipe of each stream from the fd store, closed by this console; None: they are created, and what was
            staged is written again.
        save: as of `FifoWriter`.
    """

    __slots__ = (
        "_initial", "_open_journal", "ended", "namespace", "number", "since_monotonic", "task",
        "unit", "writers",
    )  # fmt: skip

    def __init__(
        self,
        state: ConsoleState,
        catch_up_to: JournalPosition | None,
        staging: Mapping[Stream, int] | None,
        save: Callable[["TaskConsole"], None],
        open_journal: OpenJournal,
    ) -> None:
        self.task, self.unit, self.number = state.task, state.unit, state.number
        self.since_monotonic, self.namespace, self.ended = state.began, state.namespace, state.ended
        self._initial = state
        self._open_journal = open_journal
        self.writers: dict[Stream, FifoWriter] = {}
        for stream, delivery in state.progress.items():
            pipe = staging[stream] if staging else open_staging_pipe()
            known = delivery if staging else replace(delivery, staged=None)
            self.writers[stream] = FifoWriter(known, catch_up_to, pipe, partial(save, self))

    @property
    def state(self) -> ConsoleState:
        """The state to save."""
        progress = {stream: writer.delivery for stream, writer in self.writers.items()}
        return replace(self._initial, progress=progress, number=self.number, ended=self.ended)

    @property
    def is_open(self) -> bool:
        """All writers have a FIFO."""
        return all(writer.is_open for writer in self.writers.values())

    @property
    def is_catching_up(self) -> bool:
        """Some lines have to be read from the journal again."""
        return any(writer.queue.catch_up_to is not None for writer in self.writers.values())

    @property
    def has_reader(self) -> bool:
        """Some FIFO has a reader."""
        return any(writer.has_reader for writer in self.writers.values())

    @property
    def is_finished(self) -> bool:
        """The task has ended, and each FIFO has all lines or is unreachable."""
        return self.ended and all(writer.is_delivered or writer.is_unreachable for writer in self.writers.values())

    @property
    def is_unreachable(self) -> bool:
        """All FIFOs are unreachable."""
        return all(writer.is_unreachable for writer in self.writers.values())

    @property
    def is_delivered(self) -> bool:
        """All offered lines are in the FIFOs."""
        return all(writer.is_delivered for writer in self.writers.values())

    def catch_up(self) -> bool:
        """Read skipped lines, as many as there is room for, of streams whose FIFO has a reader; return whether it did.

        The journal is open meanwhile only: it takes a descriptor for each file of its own. What it cannot open, it
        leaves out without an error.
        """
        busy = False
        for stream, writer in self.writers.items():
            queue = writer.queue
            if not writer.has_reader or not queue.can_catch_up:
                continue
            with closing(self._open_journal(matches(self.unit, stream), self.namespace)) as journal:
                if queue.last_cursor:
                    journal.seek_after(queue.last_cursor)
                else:
                    journal.seek_realtime(earliest_realtime(self._initial.since, self.since_monotonic))
                found = iter(journal.next, None)
                queue.catch_up(line for line in found if line.position.monotonic >= self.since_monotonic)
            writer.pump()
            busy = True
        stderr = self.writers[Stream.STDERR]  # the notices of both streams: stdout has the guest's bytes only
        for stream, writer in self.writers.items():
            if writer.queue.removed:
                stderr.queue.notice += removed_notice(writer.queue.removed, stream)
                writer.queue.removed = 0
                stderr.pump()
        return busy

    def close(self) -> None:
        """Close the FIFOs and the staging pipes."""
        for writer in self.writers.values():
            writer.close()
