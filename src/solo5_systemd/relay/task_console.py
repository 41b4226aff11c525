"""The console of one task: a FIFO writer and a catch-up reader for each stream."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from solo5_systemd.journal.lines import JournalPosition, Stream
from solo5_systemd.relay.fifo_writer import ConsoleDescriptors, FifoWriter, open_staging_pipe
from solo5_systemd.relay.journal_source import JournalCatchup, OpenJournal, matches
from solo5_systemd.relay.notices import removed_notice
from solo5_systemd.relay.state import ConsoleState


class TaskConsole:
    """The console of one task.

    Args:
        catch_up_to: the last line that has to be read from the journal again.
        stored: the descriptors from the fd store, closed by this console; None: staging pipes are created, what was
            staged is written again, and the writers have no FIFO.
        save: called when `state` has changed; has to save it before it returns.
    """

    __slots__ = (
        "_catchups", "_initial", "_open_journal", "ended", "generation", "namespace", "number", "since_monotonic",
        "task", "unit", "writers",
    )  # fmt: skip

    def __init__(
        self,
        state: ConsoleState,
        catch_up_to: JournalPosition | None,
        stored: ConsoleDescriptors | None,
        save: Callable[["TaskConsole"], None],
        open_journal: OpenJournal,
    ) -> None:
        self.task, self.unit, self.number = state.task, state.unit, state.number
        self.since_monotonic, self.namespace, self.ended = state.began, state.namespace, state.ended
        self._initial = state
        self._open_journal = open_journal
        self.writers: dict[Stream, FifoWriter] = {}
        for stream, delivery in state.progress.items():
            staging = stored.staging[stream] if stored else open_staging_pipe()
            known = delivery if stored else replace(delivery, staged=None)
            self.writers[stream] = FifoWriter(known, catch_up_to, staging, partial(save, self))
        self.generation = stored.generation if stored else 0
        self._catchups: dict[Stream, JournalCatchup] = {}

    @property
    def state(self) -> ConsoleState:
        """The state to save."""
        progress = {stream: writer.delivery for stream, writer in self.writers.items()}
        return replace(self._initial, progress=progress, ended=self.ended)

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

    def open(self, fifos: Mapping[Stream, int]) -> None:
        """Store these FIFOs with the staging pipes, and write to them from now on; closed by this console."""
        self.generation += 1
        staging = {stream: writer.staging for stream, writer in self.writers.items()}
        ConsoleDescriptors(generation=self.generation, fifos=fifos, staging=staging).store(self.number)
        for stream, fifo in fifos.items():
            self.writers[stream].open(fifo)

    def take_dropped(self) -> int:
        """Return and reset the number of lines that journald dropped according to the notices written."""
        queues = [writer.queue for writer in self.writers.values()]
        count = sum(queue.dropped for queue in queues)
        for queue in queues:
            queue.dropped = 0
        return count

    def catch_up(self) -> bool:
        """Read skipped lines of streams whose FIFO has a reader; return whether something was read."""
        busy = False
        for stream, writer in self.writers.items():
            if writer.has_reader and self._catchup(stream).step():
                writer.pump()
                busy = True
        self._append_removed_notices()
        if not self.is_catching_up:
            self._close_catchups()
        return busy

    def _catchup(self, stream: Stream) -> JournalCatchup:
        if stream not in self._catchups:
            since = (self._initial.since, self.since_monotonic)
            opened = partial(self._open_journal, matches(self.unit, stream), self.namespace)
            self._catchups[stream] = JournalCatchup(self.writers[stream].queue, since, opened)
        return self._catchups[stream]

    def _close_catchups(self) -> None:
        while self._catchups:
            self._catchups.popitem()[1].close()

    def _append_removed_notices(self) -> None:
        stderr = self.writers[Stream.STDERR]  # the notices of both streams: stdout has the guest's bytes only
        for stream, writer in self.writers.items():
            if writer.queue.removed:
                stderr.queue.append_notice(removed_notice(writer.queue.removed, stream))
                writer.queue.removed = 0
                stderr.pump()

    def close(self) -> None:
        """Close the FIFOs, the staging pipes and the journal."""
        self._close_catchups()
        for writer in self.writers.values():
            writer.close()
