"""Rate limits of a NIC: bytes and packets per second, in each direction.

sent=10M               bytes that the guest sends; K, M, G and T are powers of 1000, as in IOReadBandwidthMax=
received=50M           bytes that the guest receives
sent-packets=20000
received-packets=20000
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.settings.records import TYPES, texts

KEYS = ("sent", "received", "sent-packets", "received-packets")
_FACTORS = {"T": 10**12, "G": 10**9, "M": 10**6, "K": 10**3, "": 1}
"""Suffixes of rates: powers of 1000, as in systemd.resource-control(5)."""

BYTES_MIN, PACKETS_MIN = 1000, 10
"""The lowest limits. A guest that cannot answer ARP within a second has no network."""

LIMIT_MAX = 10**12


class Rate(NamedTuple):
    """Limits per second, from the guest's view, in the order of KEYS; None: none.

    Attributes:
        sent: bytes of IP packets, without the Ethernet header.
        sent_packets: frames.
    """

    sent: int | None = None
    received: int | None = None
    sent_packets: int | None = None
    received_packets: int | None = None

    def __str__(self) -> str:
        return " ".join(
            f"{key}={value if key.endswith('packets') else short(value)}"
            for key, value in zip(KEYS, self, strict=True)
            if value is not None
        )


UNLIMITED = Rate()


def rate(texts: Sequence[str]) -> Rate:
    """Parse limits, each of a key at most once; raises InvalidRequestError: malformed, or out of range."""
    found: dict[str, int] = {}
    for text in texts:
        key, _, number = text.partition("=")
        value = per_second(number)
        if value < 0 or key not in KEYS or key in found:
            raise InvalidRequestError(
                f"rate {text!r} is not a limit: expected each of {', '.join(KEYS)} at most once, with a number and "
                "K, M, G or T, such as sent=10M (bytes per second)."
            )
        low = PACKETS_MIN if key.endswith("packets") else BYTES_MIN
        if not low <= value <= LIMIT_MAX:
            raise InvalidRequestError(
                f"rate {text!r} is out of range: expected {short(low)} to {short(LIMIT_MAX)} per second."
            )
        found[key] = value
    return Rate(**{key.replace("-", "_"): value for key, value in found.items()})


TYPES[Rate] = texts(rate, lambda value: str(value).split())


def lower(one: Rate, other: Rate) -> Rate:
    """Return the lower one of each two limits."""
    pairs = zip(one, other, strict=True)
    return Rate(*(min((each for each in pair if each is not None), default=None) for pair in pairs))


def check_cap(wanted: Rate, cap: Rate, of: str) -> None:
    """Check that no limit is above the operator's; raises InvalidRequestError."""
    for key, mine, most in zip(KEYS, wanted, cap, strict=True):
        if mine is not None and most is not None and mine > most:
            raise InvalidRequestError(
                f"rate {key}={short(mine)} is above the limit of {of}: expected {short(most)} per second or less.",
                "Leave it out to have the network's.",
            )


def per_second(text: str) -> int:
    """Return the number of `500` or `10M`, suffixes are powers of 1000, unlike those of a size. -1: it is no rate."""
    match = re.fullmatch("([0-9]{1,40})([KMGT]?)", text, re.ASCII)
    return int(match[1]) * _FACTORS[match[2]] if match else -1


def short(value: int) -> str:
    """Return a number above zero with the largest suffix that leaves no remainder."""
    suffix, factor = next(each for each in _FACTORS.items() if value % each[1] == 0)
    return f"{value // factor}{suffix}"
