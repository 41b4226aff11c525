"""How often recurring events of a task are sent: `BURST` at once, then one a minute that counts the others."""

from dataclasses import dataclass, replace

from solo5_systemd.nomad.event_messages import TaskEvent

BURST = 4
"""Recurring events at once. Nomad keeps ten of a task, and those of its start and end must stay among them."""

REFILL_INTERVAL_S = 60.0
"""Seconds until one more recurring event may be published."""


@dataclass
class Throttle:
    """A token bucket for the recurring events of one task. Excess events are summarised by the last of them.

    All times are seconds of the same monotonic clock.
    """

    since: float
    tokens: float = BURST
    held: int = 0
    last: TaskEvent | None = None

    def offer(self, event: TaskEvent, now: float) -> TaskEvent | None:
        """Return the event if it may be published now; None if it is held back."""
        self._refill(now)
        if self.held == 0 and self.tokens >= 1:  # no event overtakes a held one
            self.tokens -= 1
            return event
        self.held, self.last = self.held + 1, event
        return None

    def due(self, now: float) -> float:
        """Return the seconds until the held events may be released."""
        self._refill(now)
        return max(0.0, (1 - self.tokens) * REFILL_INTERVAL_S)

    def release(self, now: float) -> TaskEvent | None:
        """Return the last held event, with the number of the others; None if none is held."""
        self._refill(now)
        held, last = self.held, self.last
        self.held, self.last = 0, None
        if last is None:
            return None
        self.tokens -= 1
        return last if held == 1 else replace(last, message=f"{last.message} … and {held - 1} earlier events")

    def _refill(self, now: float) -> None:
        self.tokens = min(BURST, self.tokens + (now - self.since) / REFILL_INTERVAL_S)
        self.since = now
