"""When a task is ready, in a job's words and as what is asked of the guest; and when it is so no longer."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address
from typing import TYPE_CHECKING

from solo5_systemd.decode import Fields
from solo5_systemd.errors import InvalidRequestError
from solo5_systemd.image.manifest import DeviceKind
from solo5_systemd.network.model import Protocol, ipv4_address, port_number
from solo5_systemd.nomad.config.values import choice, seconds

if TYPE_CHECKING:
    from solo5_systemd.engine.task import Preflight

LONGEST_PATTERN = 500
"""Characters of a pattern: it is to find a line, not to hold one."""

LONGEST_DEADLINE = 600.0
"""Seconds. Nomad cannot call a start off: nobody could stop the job for so long."""

TIMES = 3
"""Answers that are missing one after the other until a task counts as no longer ready: one is lost on any network."""


class OnLoss(StrEnum):
    """What becomes of a task that is no longer ready."""

    EVENT = "event"
    RESTART = "restart"


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of the guest's console that this pattern is found in."""

    pattern: str

    def __str__(self) -> str:
        return f"a console line with {self.pattern!r}"


@dataclass(frozen=True, kw_only=True)
class Port:
    """A port of the guest that answers; by the label that it has in the group, or by its number."""

    protocol: Protocol
    name: str


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Where the guest is asked: TCP by a connection, UDP by a datagram that it is to echo."""

    protocol: Protocol
    address: IPv4Address
    port: int

    def __str__(self) -> str:
        return f"{self.protocol} {self.address}:{self.port}"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A job's `ready` block.

    Attributes:
        by: what is waited for.
        deadline: seconds that the start waits for it.
        interval: seconds between two questions afterwards.
        on_loss: what happens when answers stop coming.
    """

    by: Line | Port
    deadline: float = 30.0
    interval: float = 10.0
    on_loss: OnLoss = OnLoss.EVENT


@dataclass(frozen=True, kw_only=True)
class Watched:
    """What is asked of a task that is ready, and has to be known to a driver that takes it up again."""

    endpoint: Endpoint
    interval: float
    on_loss: OnLoss

    def plain(self) -> Mapping[str, object]:
        """For the task's handle, which is JSON."""
        return {
            "protocol": self.endpoint.protocol.value,
            "address": str(self.endpoint.address),
            "port": self.endpoint.port,
            "interval": f"{self.interval:g}s",
            "on_loss": self.on_loss.value,
        }


def watched(fields: Fields) -> Watched:
    """Read what `Watched.plain` made of it.

    Raises:
        InvalidRequestError: it is damaged.
    """
    return Watched(
        endpoint=Endpoint(
            protocol=fields.parsed("protocol", Protocol),
            address=fields.parsed("address", ipv4_address),
            port=fields.integer("port", low=1, high=65535),
        ),
        interval=fields.parsed("interval", seconds),
        on_loss=choice(fields, "on_loss", OnLoss) or OnLoss.EVENT,
    )


def rule(fields: Fields) -> Rule:
    """Read a job's `ready` block.

    Raises:
        InvalidRequestError: it names no rule or several, or a value is wrong.
    """
    fields.allow("console", "tcp", "udp", "deadline", "interval", "on_loss")
    deadline = _seconds(fields, "deadline", Rule.deadline, 1.0, LONGEST_DEADLINE)
    interval = _seconds(fields, "interval", Rule.interval, 0.1, 3600.0)
    on_loss = choice(fields, "on_loss", OnLoss) or OnLoss.EVENT
    by = _by(fields)
    if on_loss is OnLoss.RESTART and isinstance(by, Line):
        raise fields.wrong("on_loss", on_loss.value, "none beside console: a line that was said stays said")
    return Rule(by=by, deadline=deadline, interval=interval, on_loss=on_loss)


def _by(fields: Fields) -> Line | Port:
    named = [key for key in ("console", "tcp", "udp") if fields.has(key)]
    rules = [_line(fields) if key == "console" else _port(fields, Protocol(key)) for key in named]
    if len(rules) != 1:
        raise InvalidRequestError(
            f"{fields.where} names {' and '.join(named) or 'no rule'}: "
            'expected exactly one of console = "REGEX", tcp = "PORT", udp = "PORT".'
        )
    return rules[0]


def _line(fields: Fields) -> Line:
    pattern = fields.text("console")
    if not 0 < len(pattern) <= LONGEST_PATTERN or any(each in pattern for each in "\0\n"):
        raise fields.wrong(
            "console", pattern, f"a regular expression of one line with 1 to {LONGEST_PATTERN} characters"
        )
    return Line(pattern=pattern)


def _port(fields: Fields, protocol: Protocol) -> Port:
    name = fields.text(protocol)
    if name.isascii() and name.isdigit():
        fields.parsed(protocol, lambda text: port_number(int(text)))
    elif not name:
        raise fields.wrong(protocol, name, "a label of the group's ports, or the guest's own port")
    return Port(protocol=protocol, name=name)


def _seconds(fields: Fields, key: str, default: float, least: float, most: float) -> float:
    value = fields.parsed(key, seconds, default)
    if not least <= value <= most:
        raise fields.wrong(key, fields.text(key), f"from {least:g}s to {most:g}s")
    return value


def refuse(rule: Rule | None, preflight: "Preflight") -> None:
    """Find out what is wrong with a rule now that the image has told what it is.

    Raises:
        InvalidRequestError: it has no NIC, and a port is to answer.
    """
    if rule is not None and isinstance(rule.by, Port) and not preflight.manifest.names(DeviceKind.NET_BASIC):
        raise no_nic(rule.by)


def no_nic(port: Port) -> InvalidRequestError:
    return InvalidRequestError(
        f"config.ready.{port.protocol} is {port.name!r}, and the image has no NIC: expected a guest with an address.",
        'Wait for a line of its console: ready { console = "…" }',
    )


class Change(StrEnum):
    LOST = "lost"
    REGAINED = "regained"


class Pulse:
    """A task that is ready, beat by beat."""

    def __init__(self) -> None:
        self._missed = 0

    def beat(self, *, answered: bool) -> Change | None:
        """Count an answer or its absence; what has changed by it."""
        before, self._missed = self._missed, 0 if answered else self._missed + 1
        if answered:
            return Change.REGAINED if before >= TIMES else None
        return Change.LOST if self._missed == TIMES else None
