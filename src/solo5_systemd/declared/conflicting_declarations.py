"""What two declarations cannot have at the same time: a published port, an address, a MAC.

Each file for itself is in order, and such a task starts while the other one does not run; so it is a warning of
`solo5ctl doctor`, and an error of the second start.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import combinations

from solo5_systemd.declared.declaration import Declaration
from solo5_systemd.network.model import EVERY_IPV6
from solo5_systemd.task.networks import host_endpoint
from solo5_systemd.task.workload import Publish


def conflicts(declarations: Iterable[Declaration]) -> Iterator[str]:
    """Yield a sentence for each pair of tasks of which only one can run at a time, by what they share.

    Args:
        declarations: of tasks; of a template, its instances that have files of their own.
    """
    ports: defaultdict[tuple[object, ...], list[tuple[Declaration, Publish]]] = defaultdict(list)
    values: defaultdict[str, dict[str, Declaration]] = defaultdict(dict)
    for declaration in declarations:
        for port in declaration.workload.publish:
            ports[port.protocol, port.host_port].append((declaration, port))
        for nic in declaration.workload.nics:
            texts = (("address", nic.ipv4), ("address", nic.ipv6), ("MAC address", nic.mac))
            for what in (f"{kind} {value} of network {nic.network}" for kind, value in texts if value is not None):
                values[what][declaration.name] = declaration
    for same in ports.values():
        for (one, port), (other, its) in combinations(same, 2):
            if one.name != other.name and _overlap(port, its):
                yield _sentence(f"published port {host_endpoint(port)}", one, other)
    for what, by_name in values.items():
        yield from (_sentence(what, one, other) for one, other in combinations(by_name.values(), 2))


def _overlap(one: Publish, other: Publish) -> bool:
    """Return whether two ports of one number share an address: without one, a port is published at all."""
    if one.host_ip is None or other.host_ip is None or one.host_ip == other.host_ip:
        return True
    every = (one.host_ip == EVERY_IPV6, other.host_ip == EVERY_IPV6)
    return any(every) and one.host_ip.version == other.host_ip.version


def _sentence(what: str, one: Declaration, other: Declaration) -> str:
    return f"{what} is in {one.paths[0]} and in {other.paths[0]}: only one of both tasks can run at a time."
