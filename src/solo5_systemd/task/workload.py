"""Workloads: the input of a start, from any front end."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from solo5_systemd.base.names import DeviceName, Target, TaskName, UnitKind
from solo5_systemd.network.model import NO_LIMITS, IpAddress, Limits, NicRequest, PortRequest, Protocol
from solo5_systemd.settings.node_limits import OPERATOR, Tenant
from solo5_systemd.settings.resolver import UNSET, Host, Resolver
from solo5_systemd.storage.model import DiskRequest

if TYPE_CHECKING:
    from solo5_systemd.task.policy import Policy

MIB = 1 << 20
DEFAULT_MEMORY = 128 * MIB
STOP_TIMEOUT_S = 10.0
"""Time between the stop signal and SIGKILL. A tender ends within milliseconds of the signal, or never."""


@dataclass(frozen=True, kw_only=True)
class Publish:
    """A port to publish.

    Attributes:
        nic: None: the one named `service`, or else the image's first.
        host_ip: None: all addresses of the host; `::`: all its IPv6 addresses.
        implied: not requested by name; dropped for an image without NICs, instead of an error.
    """

    nic: DeviceName | None = None
    host_ip: IpAddress | None = None
    host_port: int
    port: int
    protocol: Protocol = Protocol.TCP
    implied: bool = False

    def to(self, nic: DeviceName) -> PortRequest:
        """Return the request for a NIC."""
        return PortRequest(
            nic=nic, host_ip=self.host_ip, host_port=self.host_port, port=self.port, protocol=self.protocol
        )


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The input of a start.

    Attributes:
        roots: directories below one of which the image must be, links followed; empty: it may be anywhere.
        arguments: of the guest, with placeholders.
        memory: bytes for guest, tender, and the kernel's structures for them.
        memory_max: bytes of MemoryMax=, at least `memory`; None: `memory`, INFINITY: no limit.
        cpus: limit of CPU time, in processors; None: no limit.
        cpu_weight: CPUWeight=, 1–10000; None: systemd's default.
        nics: one request for each NET_BASIC device; empty: each joins the default network.
        namespace: path of the network namespace to run in; empty: the host's own.
        publish: ports to publish; in a namespace, of its addresses and its loopback.
        limits: of each NIC whose request has none.
        idle_s: seconds without a packet after which it sleeps; 0: it never does.
        idle_stops: it ends instead, and waits without a process for its next packet.
        disks: one for each BLOCK_BASIC device.
        slice: `solo5.slice` or one below it; None: `solo5.slice`.
        kind: a service, or a scope whose process the caller executes.
        properties: further unit properties, as in a unit file (`TasksMax`, `32`).
        resolver: name servers and search domains; what it does not set is the network's or the host's.
        hostname: of the guest; empty: the task's name.
        hosts: names of machines with their addresses, as `{hosts}` in arguments.
        port_labels: ports of the host by label, as `{port.LABEL}` in arguments.
        description: Description= of the unit; None: derived from the image.
        policy: None: everything is permitted.
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
    namespace: str = ""
    limits: Limits = NO_LIMITS
    idle_s: int = 0
    idle_stops: bool = False
    publish: tuple[Publish, ...] = ()
    disks: tuple[DiskRequest, ...] = ()
    tender: Target | None = None
    slice: str | None = None
    kind: UnitKind = UnitKind.SERVICE
    properties: tuple[tuple[str, str], ...] = ()
    log_fields: tuple[tuple[str, str], ...] = ()
    resolver: Resolver = UNSET
    hostname: str = ""
    hosts: tuple[Host, ...] = ()
    port_labels: tuple[tuple[str, int], ...] = ()
    description: str | None = None
    tenant: Tenant = OPERATOR
    policy: "Policy | None" = None
