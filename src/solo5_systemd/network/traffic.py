"""What went over a task's NICs, as the guest sees it, from what the kernel counts at their taps.

What the host receives from a tap is what the guest has sent.
"""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """One direction; `drops`: frames that were thrown away, on the host's side, before they came through."""

    bytes: int
    packets: int
    errors: int
    drops: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Of one NIC."""

    received: Counters
    sent: Counters


def traffic(table: str) -> Iterator[tuple[str, Traffic]]:
    """Each link of /proc/net/dev (proc(5)), as the guest behind it would count: two lines of head, then `LINK: …`.

    Bytes, packets, errors and drops come first of the eight columns that each direction has.
    """
    for line in table.splitlines()[2:]:
        link, _, columns = line.rpartition(":")
        words = columns.split()
        if len(words) >= 12 and all(map(str.isdecimal, words)):
            yield link.strip(), Traffic(received=_counters(words[8:]), sent=_counters(words))


def _counters(words: list[str]) -> Counters:
    of_bytes, packets, errors, drops = map(int, words[:4])
    return Counters(bytes=of_bytes, packets=packets, errors=errors, drops=drops)
