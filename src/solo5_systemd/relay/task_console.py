"""One task's console: two outlets, and how far each has come."""

from collections.abc import Callable, Sequence

from solo5_systemd.journal.export import Stream
from solo5_systemd.journal.lines import Place, removal_notice
from solo5_systemd.journal.reader import JournalReader
from solo5_systemd.relay.fdstore_names import Kept, new_staging
from solo5_systemd.relay.fifo_writer import Outlet, Staging
from solo5_systemd.relay.journal_catchup import OpenJournal, Refill, matches
from solo5_systemd.relay.state import Delivery, Record


class Console:
    """What a record is about, at work.

    Args:
        record: where to go on.
        gap: up to where the journal's lines have to be read again.
        kept: what systemd has kept; a staging pipe that it has not, and what was in it, are made anew.
        keep: called when `record` gives something new, which is to be kept before anything else happens.
        open_journal: given matches and a namespace, a reader of that journal.

    Attributes:
        ended: no more lines will come.
    """

    def __init__(
        self,
        record: Record,
        gap: Place | None,
        kept: Kept,
        keep: Callable[["Console"], None],
        open_journal: OpenJournal,
    ) -> None:
        self.task, self.unit, self.since, self.began = record.task, record.unit, record.since, record.began
        self.number, self.ended = record.number, record.ended
        self.namespace = record.namespace
        self._open_journal = open_journal
        self.outlets = {
            stream: self._outlet(stream, delivery, gap, kept.take_staging(self.number, stream), lambda: keep(self))
            for stream, delivery in record.streams.items()
        }
        self._refills = [
            (outlet, Refill(outlet.lane, matches(self.unit, stream), (self.since, self.began), self._reopen))
            for stream, outlet in self.outlets.items()
        ]

    @property
    def record(self) -> Record:
        streams = {stream: outlet.delivery for stream, outlet in self.outlets.items()}
        return Record(
            task=self.task,
            unit=self.unit,
            since=self.since,
            began=self.began,
            streams=streams,
            number=self.number,
            ended=self.ended,
            namespace=self.namespace,
        )

    @property
    def is_open(self) -> bool:
        """Its FIFOs are held open here."""
        return all(outlet.is_open for outlet in self.outlets.values())

    @property
    def is_behind(self) -> bool:
        """Some of its lines have to be read from the journal again."""
        return any(outlet.lane.gap is not None for outlet in self.outlets.values())

    @property
    def is_over(self) -> bool:
        """It has ended, and nothing is left to deliver, or nobody to deliver it to."""
        return self.ended and all(outlet.is_done or outlet.is_hopeless for outlet in self.outlets.values())

    @property
    def is_abandoned(self) -> bool:
        """Nobody can read it any more, ended or not."""
        return all(outlet.is_hopeless for outlet in self.outlets.values())

    @property
    def is_done(self) -> bool:
        """All that was offered is delivered."""
        return all(outlet.is_done for outlet in self.outlets.values())

    def take_left_out(self) -> int:
        """How many lines journald has left out, of which notice was given and which were not counted here before."""
        lanes = [outlet.lane for outlet in self.outlets.values()]
        count = sum(lane.left_out for lane in lanes)
        for lane in lanes:
            lane.left_out = 0
        return count

    def refill(self) -> bool:
        """Bring the lanes what they had passed over, if they are read; whether there may be more."""
        busy = False
        for outlet, refill in self._refills:
            if outlet.flows and refill.step():
                outlet.stir()
                busy = True
        self._tell_removed()
        return busy

    def _tell_removed(self) -> None:
        """Say of lines that they are gone: on stderr, since stdout is the guest's."""
        teller = self.outlets[Stream.STDERR]
        for stream, outlet in self.outlets.items():
            if outlet.lane.removed:
                teller.lane.tell(removal_notice(outlet.lane.removed, stream))
                outlet.lane.removed = 0
                teller.stir()

    def _outlet(
        self, stream: Stream, delivery: Delivery, gap: Place | None, staging: Staging | None, keep: Callable[[], None]
    ) -> Outlet:
        if staging is None:
            staging, delivery = new_staging(self.number, stream), Delivery(sure=delivery.sure)
        return Outlet(delivery, gap, staging, keep)

    def _reopen(self, wanted: Sequence[str]) -> JournalReader:
        """Open the journal that has its lines."""
        return self._open_journal(wanted, self.namespace)

    def close(self) -> None:
        for outlet, refill in self._refills:
            refill.close()
            outlet.close()
