"""Tasks with default values."""

from ipaddress import IPv4Address, IPv4Interface, IPv4Network

from solo5_systemd.base.names import DeviceName, NetworkName, TaskName, UnitKind, task_scope, task_service
from solo5_systemd.engine.task import Phase, Task
from solo5_systemd.network.drops import Dropped
from solo5_systemd.network.endpoints import Endpoints, LeasedNic
from solo5_systemd.network.model import Lease, MacAddress, PortRequest, Protocol, Reservation
from solo5_systemd.network.overview import NetworkOverview
from solo5_systemd.settings.network_policy import NetworkPolicy
from solo5_systemd.unit.outcome import Ending, Outcome
from solo5_systemd.unit.state import ActiveState, UnitState

STARTED = 1_700_000_000_000_000
"""Microseconds since the epoch."""

FIELDS = {
    "SOLO5_TASK": "web",
    "SOLO5_IMAGE": "/srv/web.hvt",
    "SOLO5_IMAGE_SHA256": "5" * 64,
    "SOLO5_TENDER": "hvt",
    "SOLO5_MEMORY": str(64 << 20),
}

LEASE = Lease(
    nic=DeviceName("service"),
    network=NetworkName("default"),
    bridge="solo5-default",
    tap="s5-1f00c0de",
    ipv4=IPv4Interface("10.89.0.2/24"),
    gateway4=IPv4Address("10.89.0.1"),
    mac=MacAddress("02:00:5e:10:00:01"),
    mtu=1500,
)
NETWORK = NetworkOverview(
    name=NetworkName("default"),
    bridge="solo5-default",
    ipv4=IPv4Network("10.89.0.0/24"),
    gateway4=IPv4Address("10.89.0.1"),
    mtu=1500,
    up=True,
    leases=1,
    free=252,
    policy=NetworkPolicy(reach=(NetworkName("lab"),), host=("53/udp",), connections=64),
    dropped=Dropped(rules={("connections", "10.89.0.2"): 17, ("fragments", "10.89.0.2"): 5}),
)
"""The network of `LEASE`."""

PORTS = (
    PortRequest(nic=DeviceName("service"), host_port=8080, port=80, protocol=Protocol.TCP),
    PortRequest(
        nic=DeviceName("service"), host_ip=IPv4Address("127.0.0.1"), host_port=53, port=53, protocol=Protocol.UDP
    ),
)


def endpoints(reservation: Reservation) -> Endpoints:
    return Endpoints(
        tuple(
            LeasedNic(lease.nic, lease.network, str(lease.address or ""), lease.tap, str(lease.address6 or ""))
            for lease in reservation.leases
        ),
        tuple((str(port.host_ip or ""), port.host_port, port.port, port.protocol.value) for port in reservation.ports),
    )


def running(
    name: str = "web", *, phase: Phase = Phase.RUNNING, networked: bool = False, kind: UnitKind = UnitKind.SERVICE
) -> Task:
    task = TaskName(name)
    return Task(
        state=UnitState(
            task=task,
            unit=task_service(task) if kind is UnitKind.SERVICE else task_scope(task),
            active=ActiveState.ACTIVE,
            invocation="0" * 31 + "1",
            main_pid=4711,
            started=STARTED,
            control_group=f"/solo5.slice/{task_service(task)}",
            log_fields=FIELDS | {"SOLO5_TASK": name},
        ),
        phase=phase,
        reservation=Reservation(task=task, leases=(LEASE,), ports=PORTS) if networked else None,
    )


def ended(name: str = "web", outcome: Outcome | None = None) -> Task:
    task = TaskName(name)
    return Task(
        state=UnitState(
            task=task,
            unit=task_service(task),
            active=ActiveState.INACTIVE,
            invocation="0" * 31 + "1",
            started=STARTED,
            ended=STARTED + 60_000_000,
            log_fields=FIELDS | {"SOLO5_TASK": name},
        ),
        phase=Phase.ENDED,
        outcome=outcome or Outcome(ending=Ending.EXITED, exit_code=0, sentence="the guest exited with 0"),
    )


def outcome_of(task: Task) -> Outcome:
    """Return how a task that has ended did."""
    assert task.outcome is not None
    return task.outcome
