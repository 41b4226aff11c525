"""What lists of hundreds of tasks show of a lease record, as text, and of the recorded repairs.

Only this is checked; `network.lease_files` checks all of a record, in ten times as much time.
"""

from collections.abc import Sequence
from typing import NamedTuple

UNREPAIRED = "not repaired: "
"""The beginning of `overview.Repair.what` for what only an operator can repair."""


class LeasedNic(NamedTuple):
    """What a list shows of a lease, as text; `address` (IPv4) and `address6`: without prefix length, empty for none."""

    nic: str
    network: str
    address: str
    tap: str
    address6: str = ""


class Endpoints(NamedTuple):
    """The leased NICs and published ports of one task as text, in the order of its lease record (`LeaseRecord`).

    Attributes:
        ports: address of the host (empty: all), port of the host, port of the guest, and protocol of each.
    """

    nics: tuple[LeasedNic, ...] = ()
    ports: tuple[tuple[str, int, int, str], ...] = ()
    namespace: str = ""
    asleep: int = 0
    wakes: int = 0
    slept: int = 0
    waits: bool = False


class Problem(NamedTuple):
    """What only an operator can repair of the networks of tasks; `time`: in microseconds since the epoch."""

    what: str
    tasks: tuple[str, ...]
    time: int


def problems_of(document: object) -> Sequence[Problem]:
    """Return the problems in the decoded file of the last repairs; none: it is malformed."""
    try:
        repairs = [(_text(each["what"]), each) for each in document["repairs"]]  # type: ignore[index]
        return [
            Problem(what.removeprefix(UNREPAIRED), tuple(map(_text, each["tasks"])), _number(each["time"]))
            for what, each in repairs
            if what.startswith(UNREPAIRED)
        ]
    except (KeyError, TypeError):
        return ()


def endpoints_of(record: object) -> Endpoints | None:
    """Return the endpoints of a decoded lease record; None: it is malformed."""
    if not isinstance(record, dict):
        return None
    try:
        held, waits = record["reservation"], record.get("state") == "waiting"
        nics, ports = tuple(map(_leased, held.get("leases", ()))), tuple(map(_port, held.get("ports", ())))
        asleep, wakes, slept = (_number(record.get(key, 0)) for key in ("asleep", "wakes", "slept"))
        return Endpoints(nics, ports, _text(record.get("namespace", "")), asleep, wakes, slept, waits)
    except (KeyError, TypeError, AttributeError):
        return None


def _leased(lease: dict[str, object]) -> LeasedNic:
    ipv4, ipv6 = (_text(lease.get(key, "")).partition("/")[0] for key in ("ipv4", "ipv6"))
    return LeasedNic(_text(lease["nic"]), _text(lease["network"]), ipv4, _text(lease["tap"]), ipv6)


def _port(port: dict[str, object]) -> tuple[str, int, int, str]:
    return _text(port.get("host_ip", "")), _number(port["host_port"]), _number(port["port"]), _text(port["protocol"])


def _number(value: object) -> int:
    if type(value) is not int:  # no isinstance: a bool is an int as well
        raise TypeError(value)
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value
