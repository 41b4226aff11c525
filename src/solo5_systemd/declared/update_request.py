"""An update of a declared task: what is requested, what makes a guest ready, and which tasks need a pause for it."""

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.base.names import TaskName, is_task_name
from solo5_systemd.network.model import PortRequest, Protocol, port_number
from solo5_systemd.settings.records import Type, text
from solo5_systemd.task.quantities import seconds, value_of

if TYPE_CHECKING:  # a plugin of Nomad imports this at its launch, for `ReadyLine`
    from solo5_systemd.image.manifest import Manifest
    from solo5_systemd.task.workload import Workload

READY_TIMEOUT_S = 20.0
"""The default of Timeout=; a reload may end sooner."""

UPDATE_DRAIN_S = 60.0
"""The default of Drain=."""

UPDATE_WATCH_S = 10.0
"""The default of Watch=."""

UPDATE_MAX_S = 86400.0
"""Seconds; the longest Timeout=, Drain= and Watch=."""

PATTERN_MAX = 500
"""Characters of a pattern, as in a job's `ready` block."""

_CONSOLE = "console"

_SUFFIX = ".next"
_MILLISECONDS = Type(
    lambda fields, key: fields.integer(key, low=0, high=round(1000 * UPDATE_MAX_S)) / 1000,
    lambda value: round(1000 * value),
)


@dataclass(frozen=True, kw_only=True)
class ReadyPort:
    """The condition that a port of the guest answers: a TCP connection, or a UDP datagram that the guest returns."""

    protocol: Protocol
    port: int

    def __str__(self) -> str:
        return f"{self.protocol}:{self.port}"


@dataclass(frozen=True, kw_only=True)
class ReadyLine:
    """The condition that a line of the guest's console matches a regular expression."""

    pattern: str

    def __str__(self) -> str:
        return f"{_CONSOLE}:{self.pattern}"


Ready = ReadyPort | ReadyLine


def parse_ready(text: str) -> Ready:
    """Parse `tcp:443`, `udp:53` or `console:PATTERN`; the result as text is parsed to the same."""
    kind, colon, rest = text.partition(":")
    if kind == _CONSOLE and colon:
        if not 0 < len(rest) <= PATTERN_MAX or not rest.isprintable():
            raise ValueError(
                f"has no usable pattern: expected a regular expression of one line with 1 to {PATTERN_MAX} characters"
            )
        return ReadyLine(pattern=rest)
    if kind not in tuple(Protocol) or not rest.isascii() or not rest.isdigit() or len(rest) > 5:
        raise ValueError(f"is not a condition: expected tcp:PORT, udp:PORT or {_CONSOLE}:PATTERN, such as tcp:443")
    return ReadyPort(protocol=Protocol(kind), port=port_number(int(rest)))


def update_time(text: str) -> float:
    """Return the seconds of Timeout=, Drain= or Watch=, or of an option like them; a parser."""
    found = seconds(text)
    if found > UPDATE_MAX_S:
        raise ValueError("is too long: expected at most 1d")
    return found


@dataclass(frozen=True, kw_only=True)
class UpdateRequest:
    """An update: what an operator has requested, and otherwise that of the declaration.

    Attributes:
        image: path of the new image; empty: that of the declaration, which may have changed.
        ready: None: as of `ready_by`.
        timeout: seconds in which the new guest has to become ready.
        drain: seconds that connections may last after their ports were moved.
        watch: seconds of the new guest before the old one is stopped.
        pause: stop the old guest before the new one is started.
    """

    image: str = ""
    ready: Annotated[Ready | None, text(partial(value_of, parse_ready, what="ready"))] = None
    timeout: Annotated[float, _MILLISECONDS] = READY_TIMEOUT_S
    drain: Annotated[float, _MILLISECONDS] = UPDATE_DRAIN_S
    watch: Annotated[float, _MILLISECONDS] = UPDATE_WATCH_S
    pause: bool = False


def next_task(task: TaskName) -> TaskName:
    """Return the name of the task that runs the new image beside `task`: `web.next` of `web`, `web.next.1` of `web@1`.

    `web@1.next` would be another instance of the template. No two tasks have the same one: the first `.next.` is the
    place of the `@`, and only a name without `@` has one that ends with `.next`.

    Raises:
        InvalidRequestError: it would be too long, or could be that of another task.
    """
    prefix, at, instance = task.partition("@")
    if at and (_SUFFIX in prefix or f".{instance}".endswith(_SUFFIX)):
        raise InvalidRequestError(
            f"task {task} cannot run a second guest during an update: expected a template without {_SUFFIX!r} in its "
            f"name, and an instance that does not end with {_SUFFIX.removeprefix('.')!r}.",
            f"Replace the image, then: systemctl restart {task}",
        )
    name = f"{prefix}{_SUFFIX}" + (f".{instance}" if at else "")
    if not is_task_name(name):
        raise InvalidRequestError(
            f"task {task} cannot run a second guest during an update, named {name}: expected at most "
            f"{128 - len(_SUFFIX)} characters."
        )
    return TaskName(name)


def check_beside(workload: "Workload", ports: Collection[PortRequest]) -> None:
    """Refuse a task of which no second guest can run beside the first, or whose ports cannot be moved to it."""
    # Each start makes its own archives and private copies.
    shared = [disk.disk for disk in workload.disks if not (disk.private or disk.archive)]
    if shared:
        reason = f"disk {shared[0]} has one writer"
    elif workload.namespace:
        reason = f"it shares network namespace {workload.namespace} with other programs"
    elif not ports:
        reason = "it publishes no port that could be moved"
    else:
        return
    raise InvalidRequestError(
        f"task {workload.name} cannot be updated without a pause, since {reason}: expected --pause.",
        "With it, `solo5ctl update` and `rollback` stop the old guest first, and print how long no guest answered.",
    )


def check_same_devices(image: str, new: "Manifest", old: "Manifest") -> None:
    """Refuse an image with other devices than the running one."""
    if {*new.devices} != {*old.devices}:
        has, had = (", ".join(sorted(manifest.devices)) or "none" for manifest in (new, old))
        raise InvalidRequestError(
            f"{image} has the devices {has}: expected those of the running image ({had}).",
            "Change the declaration, and then: systemctl daemon-reload && systemctl restart",
        )


def ready_by(wanted: Ready | None, ports: Collection[PortRequest]) -> Ready | None:
    """Return what makes a new guest ready: what is wanted, or its first published TCP port; None: that it runs."""
    tcp = (ReadyPort(protocol=port.protocol, port=port.port) for port in ports if port.protocol is Protocol.TCP)
    return wanted or next(tcp, None)
