"""How often the same task may be heard: a token bucket, and the last of what did not pass.

What is held back is not lost but summed up, so that the last state is told however often it changed.
"""

from dataclasses import dataclass

from solo5_systemd.nomad.events.messages import Announcement, more

BURST = 4
"""Events at once: Nomad keeps ten of a task, and those of its start and end are to stay among them."""

PERIOD = 60.0
"""Seconds until there may be another."""


@dataclass
class Throttle:
    """One task's; every time is that of one monotonic clock, in seconds."""

    since: float
    tokens: float = BURST
    held: int = 0
    last: Announcement | None = None

    def offer(self, announcement: Announcement, now: float) -> Announcement | None:
        """What may be told now: this one, or nothing."""
        self._refill(now)
        if self.held == 0 and self.tokens >= 1:
            self.tokens -= 1
            return announcement
        self.held, self.last = self.held + 1, announcement
        return None

    def due(self, now: float) -> float:
        """Seconds until what is held back may be told."""
        self._refill(now)
        return max(0.0, (1 - self.tokens) * PERIOD)

    def release(self, now: float) -> Announcement | None:
        """What was held back, if anything was: its last, and how many there were."""
        self._refill(now)
        held, last = self.held, self.last
        self.held, self.last = 0, None
        if last is None:
            return None
        self.tokens -= 1
        return last if held == 1 else more(last, held)

    def _refill(self, now: float) -> None:
        self.tokens = min(BURST, self.tokens + (now - self.since) / PERIOD)
        self.since = now
