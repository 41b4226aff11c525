"""The ports of a job: those that a task publishes, that of its `ready` rule, and the address that services register."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from solo5_systemd.base.errors import InvalidRequestError, located
from solo5_systemd.base.names import DeviceName, primary_nic
from solo5_systemd.network.model import Endpoint, Lease, PortRequest, Reservation
from solo5_systemd.network.request_checks import PORTS_MAX, port_range
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.nomad.task_options import GuestPort, PortLabel, TaskOptions, no_address_error
from solo5_systemd.settings.addresses import host_address
from solo5_systemd.settings.network import NAMESPACE_NETWORK
from solo5_systemd.task.workload import Publish

OF_PROXIES = ("connect-proxy-", "connect-ingress-", "connect-terminating-", "connect-mesh-")
"""The prefixes of the labels that Nomad adds to a group for the listeners of its proxies (nomad/structs/connect.go)."""


_ANY_ADDRESS = ("", "0.0.0.0")  # noqa: S104 - nothing is bound here

LISTED_MAX = 4 * PORTS_MAX
"""Ports that the lists of a job may have, repetitions included; solo5-networkd refuses more than PORTS_MAX of them."""


def namespace(task: wire.TaskConfig) -> str:
    """Return the path of the group's network namespace; empty in host mode."""
    is_group = task.network_isolation_spec.mode == wire.NetworkIsolationSpec.GROUP
    return task.network_isolation_spec.path if is_group else ""


def allocated(task: wire.TaskConfig) -> Iterator[wire.PortMapping]:
    """Yield the ports of the group, then those of the task's own `resources` (deprecated since Nomad 0.12).

    The latter reach a driver without their `to` (plugins/drivers/utils.go, ResourcesToProto).
    """
    yield from task.resources.ports
    for network in task.resources.allocated_resources.networks:
        for port in (*network.reserved_ports, *network.dynamic_ports):
            yield wire.PortMapping(label=port.label, value=port.value, host_ip=network.ip)


def wanted(task: wire.TaskConfig, options: TaskOptions) -> Iterable[tuple[DeviceName | None, PortLabel]]:
    """Return each label to publish with its NIC; None: the primary one. Without any list, all labels."""
    if lists_none(options):
        labels = (port.label for port in allocated(task))
        return [(None, PortLabel(label=label)) for label in labels if not label.startswith(OF_PROXIES)]
    by_nic = [(name, label) for name, nic in options.nic.items() for label in nic.ports]
    return [*by_nic, *((None, label) for label in options.ports or ())]


def lists_none(options: TaskOptions) -> bool:
    """Return whether the job lists no port at all, so that the driver publishes all labels."""
    return options.ports is None and not any(nic.ports for nic in options.nic.values())


def publish(task: wire.TaskConfig, options: TaskOptions) -> Iterable[Publish]:
    """Return the published ports of the task.

    Raises:
        InvalidRequestError: neither the group nor the task has such a label, or the job lists too many ports.
    """
    implied = lists_none(options)
    inside = bool(namespace(task))
    labels = _by_label(task)
    found = (
        Publish(
            nic=nic,
            # In a namespace of the group, CNI's portmap has translated the host's port to the guest's already.
            # The node's address that the scheduler chose; None: all addresses.
            host_ip=None if inside or port.host_ip in _ANY_ADDRESS else host_address(port.host_ip),
            host_port=guest_port(port) if inside else port.value,
            port=guest_port(port),
            protocol=protocol,
            implied=implied,
        )
        for nic, label in wanted(task, options)
        for protocol in label.protocols
        for port in _mappings(labels, label.label, inside=inside)
    )
    published = [*(found if implied else islice(found, LISTED_MAX + 1))]
    if not implied and len(published) > LISTED_MAX:  # lists of ranges multiply
        raise InvalidRequestError(
            f"config.ports lists more than {LISTED_MAX} ports, TCP and UDP counted apart: expected {PORTS_MAX} or "
            "fewer for one task."
        )
    # There, labels at several addresses of the host can have the same `to`, which is one port of the namespace.
    return dict.fromkeys(published) if inside else published


def ready_port(port: GuestPort, task: wire.TaskConfig, options: TaskOptions) -> tuple[DeviceName | None, int]:
    """Return the NIC (None: the primary one) and the guest's port of a `ready` rule; raises as `publish`."""
    if port.name.isascii() and port.name.isdigit():
        return None, int(port.name)
    nic = next((nic for nic, label in wanted(task, options) if label.label == port.name), None)
    return nic, guest_port(_mapping(_by_label(task), port.name, f"config.ready.{port.protocol}"))


def endpoint(port: GuestPort, task: wire.TaskConfig, options: TaskOptions, reservation: Reservation | None) -> Endpoint:
    """Return the address and port of a `ready` rule; raises InvalidRequestError if the guest has no address."""
    if reservation is None or not reservation.leases:
        raise no_address_error(port)
    nic, number = ready_port(port, task, options)
    lease = next((lease for lease in reservation.leases if lease.nic == nic), _primary(reservation))
    if lease.first_address is None:
        raise no_address_error(port, f"NIC {lease.nic} has no leased address in network {lease.network}")
    return Endpoint(protocol=port.protocol, address=lease.first_address, port=number, namespace=namespace(task))


def guest_port(port: wire.PortMapping) -> int:
    """Return `to`, or the host's port if it is not set (0, or -1 for "the same")."""
    return port.to if port.to > 0 else port.value


def network_override(
    reservation: Reservation | None, task: wire.TaskConfig, options: TaskOptions
) -> wire.NetworkOverride | None:
    """Return the guest's address and ports for services with `address_mode = "driver"`; None without such an address.

    It is not auto-advertised: other hosts reach the guest by the host's ports, not by its address on this host.
    """
    address = guest_address(reservation)
    if address is not None:
        labels = _by_label(task)
        for _, label in wanted(task, options):
            address.port_map[label.label] = guest_port(_mapping(labels, label.label))
    return address


def guest_address(reservation: Reservation | None) -> wire.NetworkOverride | None:
    """Return the address of the NIC with the published ports; the client keeps the ports of a recovered task.

    None without a leased address, in a namespace of the group, whose address Nomad has, and if several NICs have
    published ports: Nomad registers one address for all ports of a task, so that the services of one NIC would be
    registered at the address of another.
    """
    nics = published_nics(reservation) if reservation is not None else ()
    if reservation is None or not reservation.leases or len(nics) > 1:
        return None
    if any(lease.network == NAMESPACE_NETWORK for lease in reservation.leases):  # another NIC may be on `none`
        return None
    lease = reservation.lease(nics[0]) if nics else _primary(reservation)
    return wire.NetworkOverride(addr=str(lease.first_address)) if lease.first_address else None


def published_nics(reservation: Reservation) -> tuple[DeviceName, ...]:
    """Return the NICs that have published ports, in the order of their leases."""
    reached = {port.nic for port in reservation.ports}
    return tuple(lease.nic for lease in reservation.leases if lease.nic in reached)


def taken_by_sibling(
    task: wire.TaskConfig, publishes: Sequence[Publish], held: Sequence[PortRequest], sibling: str
) -> InvalidRequestError | None:
    """Return the error of a port that another task of the allocation has published; None: they share no port."""
    taken = {(port.host_ip, port.host_port, port.protocol) for port in held}
    numbers = {each.host_port for each in publishes if (each.host_ip, each.host_port, each.protocol) in taken}
    number = guest_port if namespace(task) else (lambda port: port.value)
    labels = [port.label for port in allocated(task) if number(port) in numbers]
    if not labels:
        return None
    return InvalidRequestError(
        f"port {labels[0]} is published to task {sibling} of the same allocation: "
        "expected each port of a group at one task.",
        f'List what each task has: config {{ ports = ["{labels[0]}"] }} in one, config {{ ports = [] }} in the other.',
    )


def _by_label(task: wire.TaskConfig) -> Mapping[str, wire.PortMapping]:
    """Return the first port of each label: a group may have thousands, and a task may publish them all."""
    found: dict[str, wire.PortMapping] = {}
    for port in allocated(task):
        found.setdefault(port.label, port)
    return found


def _mappings(labels: Mapping[str, wire.PortMapping], label: str, *, inside: bool) -> Sequence[wire.PortMapping]:
    """Return the port of a label, or those of a number or range in a namespace, which has no scheduler of ports."""
    if not inside or not _is_number(label) or label in labels:
        return [_mapping(labels, label)]
    with located("config.ports"):
        return [wire.PortMapping(label=label, value=number) for number in port_range(label)]


def _is_number(label: str) -> bool:
    """Return whether a label is a number or a range of numbers."""
    return label[:1].isdigit() and set(label) <= set("0123456789-")


def _mapping(labels: Mapping[str, wire.PortMapping], label: str, key: str = "config.ports") -> wire.PortMapping:
    if label in labels:
        return labels[label]
    has = ", ".join(labels) or "none"
    raise InvalidRequestError(
        f"{key} names {label!r}: expected one of the group's ports ({has}).",
        "Nomad assigns single ports: add a label for each to the group, by a dynamic block."
        if _is_number(label) and "-" in label
        else f'Add it to the group: network {{ port "{label}" {{ to = 80 }} }}',
    )


def _primary(reservation: Reservation) -> Lease:
    """Return the lease of the NIC `service`, MirageOS's default name, or else the first lease."""
    primary = primary_nic([lease.nic for lease in reservation.leases])
    return next(lease for lease in reservation.leases if lease.nic == primary)
