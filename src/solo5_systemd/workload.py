"""What to run, whoever asks for it."""

from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import IPv4Address

from solo5_systemd.block.model import DiskRequest
from solo5_systemd.image.manifest import Target
from solo5_systemd.names import DeviceName, TaskName
from solo5_systemd.network.model import NicRequest, PortRequest, Protocol
from solo5_systemd.policy import Policy

MIB = 1 << 20
DEFAULT_MEMORY = 128 * MIB
STOP_TIMEOUT_S = 10.0
"""Seconds between the stop signal and SIGKILL. A tender ends within milliseconds of its signal, or never."""


class UnitKind(StrEnum):
    SERVICE = "service"
    SCOPE = "scope"


class StopSignal(StrEnum):
    """The two signals that a tender knows as "end"; it has none for a guest to see."""

    INT = "SIGINT"
    TERM = "SIGTERM"


@dataclass(frozen=True, kw_only=True)
class Publish:
    """A port to publish; `nic` None: the one named `service`, or else the image's first.

    `implied`: no caller named it, and an image without NICs leaves it out instead of being refused.
    """

    nic: DeviceName | None = None
    host_ip: IPv4Address | None = None
    host_port: int
    port: int
    protocol: Protocol = Protocol.TCP
    implied: bool = False

    def to(self, nic: DeviceName) -> PortRequest:
        return PortRequest(
            nic=nic,
            host_ip=self.host_ip,
            host_port=self.host_port,
            port=self.port,
            protocol=self.protocol,
        )


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One task to be.

    Attributes:
        name: the task's name.
        image: path of the unikernel, as the caller sees it.
        roots: directories below one of which the image must lie, links followed; none at all: it may lie anywhere.
        arguments: the guest's, with placeholders still in them.
        memory: bytes, the whole allotment: guest, tender and what the kernel holds for them.
        memory_max: bytes at which the kernel ends it, at least `memory`; None: `memory`, INFINITY: no limit.
        cpus: how many processors' worth of time at most; None: no limit.
        cpu_weight: 1–10000, systemd's CPUWeight=; None: systemd's default.
        nics: one request for each NET_BASIC device; none at all: each joins the default network.
        publish: the ports that the host passes on.
        disks: one for each BLOCK_BASIC device.
        tender: the tender to insist on; None: the one that the image names.
        slice: the slice that holds the unit, `solo5.slice` or one below it; None: `solo5.slice`.
        kind: a service of PID 1, or a scope under the caller.
        properties: further unit properties, in systemd's own words (`TasksMax`, `32`).
        log_fields: further journal fields on every line of the task.
        description: the unit's, None: derived.
        policy: what the task may be, once all defaults are filled in.
    """

    name: TaskName
    image: str
    roots: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    memory: int = DEFAULT_MEMORY
    memory_max: int | None = None
    cpus: float | None = None
    cpu_weight: int | None = None
    nics: tuple[NicRequest, ...] = ()
    publish: tuple[Publish, ...] = ()
    disks: tuple[DiskRequest, ...] = ()
    tender: Target | None = None
    slice: str | None = None
    kind: UnitKind = UnitKind.SERVICE
    properties: tuple[tuple[str, str], ...] = ()
    log_fields: tuple[tuple[str, str], ...] = ()
    description: str | None = None
    policy: Policy = field(default_factory=Policy)
