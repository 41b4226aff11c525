"""The `ready` block of a job: the condition of readiness, and the probe that goes on after it."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

from solo5_systemd.base.decode import Fields
from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.declared.readiness import PATTERN_MAX, ReadyLine
from solo5_systemd.image.manifest import DeviceKind
from solo5_systemd.network.model import Endpoint, Protocol, port_number
from solo5_systemd.nomad.config.msgpack_values import duration
from solo5_systemd.settings.records import Type, record

if TYPE_CHECKING:
    from solo5_systemd.image.manifest import Manifest

DEADLINE_MAX_S = 600.0
"""Seconds. Nomad cannot cancel StartTask, so a job cannot be stopped before the deadline of its start."""


class OnLoss(StrEnum):
    """The reaction to a loss: a task event, or also a stop, after which Nomad's restart policy applies."""

    EVENT = "event"
    RESTART = "restart"


@dataclass(frozen=True, kw_only=True)
class GuestPort:
    """The condition that a port of the guest answers. `name`: a label of the group's ports, or the guest's own port."""

    protocol: Protocol
    name: str


def _line(fields: Fields, key: str) -> ReadyLine:
    pattern = fields.text(key)
    if not 0 < len(pattern) <= PATTERN_MAX or any(each in pattern for each in "\0\n"):
        raise fields.wrong(key, pattern, f"a regular expression of one line with 1 to {PATTERN_MAX} characters")
    return ReadyLine(pattern=pattern)


def _port(fields: Fields, key: str) -> GuestPort:
    name = fields.text(key)
    if name.isascii() and name.isdigit():
        fields.parsed(key, lambda text: port_number(int(text)))
    elif not name:
        raise fields.wrong(key, name, "a label of the group's ports, or the guest's own port")
    return GuestPort(protocol=Protocol(key), name=name)


PORT = Type(_port, str)


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A job's `ready` block, with one condition.

    Attributes:
        deadline: seconds until a start without readiness fails.
        interval: seconds between two probes of a ready task.
    """

    console: Annotated[ReadyLine | None, Type(_line, str)] = None
    tcp: Annotated[GuestPort | None, PORT] = None
    udp: Annotated[GuestPort | None, PORT] = None
    deadline: Annotated[float, duration(1.0, DEADLINE_MAX_S)] = 30.0
    interval: Annotated[float, duration(0.1, 3600.0)] = 10.0
    on_loss: OnLoss = OnLoss.EVENT

    @property
    def condition(self) -> ReadyLine | GuestPort:
        """Return the condition."""
        return next(each for each in (self.console, self.tcp, self.udp) if each is not None)


@dataclass(frozen=True, kw_only=True)
class ReadinessProbe(Endpoint):
    """The recurring probe of a ready task. It is part of the handle, so that a recovered task is probed again."""

    interval: Annotated[float, duration()]
    on_loss: OnLoss


def parse_rule(fields: Fields) -> Rule:
    """Parse a job's `ready` block.

    Raises:
        InvalidRequestError: it has no condition or several, or a value is wrong.
    """
    rule = record(Rule, fields)
    present = fields.having("console", "tcp", "udp")
    if len(present) != 1:
        raise InvalidRequestError(
            f"{fields.where} names {' and '.join(present) or 'no rule'}: "
            'expected exactly one of console = "REGEX", tcp = "PORT", udp = "PORT".'
        )
    if rule.on_loss is OnLoss.RESTART and rule.console is not None:
        raise fields.wrong("on_loss", rule.on_loss.value, "none beside console: a printed line cannot be lost again")
    return rule


def check_manifest(rule: Rule | None, manifest: "Manifest") -> None:
    """Check a rule against the image's manifest, before anything is reserved.

    Raises:
        InvalidRequestError: the rule names a port, and the image has no NIC.
    """
    if rule is not None and isinstance(rule.condition, GuestPort) and not manifest.names(DeviceKind.NET_BASIC):
        raise no_address_error(rule.condition)


def no_address_error(port: GuestPort, lack: str = "the image has no NIC") -> InvalidRequestError:
    """Return the error of a `ready` port of a guest without an address."""
    return InvalidRequestError(
        f"config.ready.{port.protocol} is {port.name!r}, and {lack}: expected a guest with an address.",
        'Wait for a line of its console: ready { console = "…" }',
    )
