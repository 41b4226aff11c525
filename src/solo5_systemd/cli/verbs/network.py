"""`solo5ctl network`: lists and inspects networks."""

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.base.names import NetworkName, network_name
from solo5_systemd.cli.context import CommandContext
from solo5_systemd.cli.parser import Parser
from solo5_systemd.cli.render import fields, moment, table
from solo5_systemd.cli.task_output import port_json, port_lines
from solo5_systemd.engine.runtime import Runtime
from solo5_systemd.engine.task import Task
from solo5_systemd.network.drops import DESCRIPTIONS
from solo5_systemd.network.model import IpAddress, Lease, PortRequest
from solo5_systemd.network.overview import NetworkOverview, Repair
from solo5_systemd.settings.network import NO_NETWORK
from solo5_systemd.settings.network_keys import keys_on
from solo5_systemd.settings.network_policy import HOST, LAN, NetworkPolicy, NetworkTraits
from solo5_systemd.settings.records import Entry, document, entries

VERBS = ("ls", "inspect", "repairs")
REPAIR_HEADER = ("TIME", "REPAIR", "TASKS")
HEADER = ("NAME", "BRIDGE", "RANGE", "GATEWAY", "IN USE", "FREE")


def configure(parser: Parser) -> None:
    parser.usage = "solo5ctl network [ls|inspect|repairs] [NETWORK...]"
    parser.rewrite = with_verb
    add = parser.add_verbs()
    add("ls", "list networks", _list).add_argument("-q", "--quiet", action="store_true", help="print names only")
    inspect = add("inspect", "show details of networks", _inspect)
    inspect.add_argument("networks", metavar="NETWORK", nargs="+", type=network_name, help="name of a network")
    add("repairs", "show the last repairs", _repairs)


def with_verb(words: list[str]) -> list[str]:
    """Return the arguments with a verb: `network` is `network ls`, and `network NAME` is `network inspect NAME`."""
    first = next((word for word in words if not word.startswith("-")), None)
    # `network --help` is not that of `network ls`.
    if first in VERBS or any(word in ("-h", "--help") for word in words):
        return words
    return ["ls" if first is None else "inspect", *words]


def execute(arguments: Namespace, context: CommandContext) -> int:
    act: Callable[[Namespace, CommandContext], int] = arguments.act
    return act(arguments, context)


def _list(arguments: Namespace, context: CommandContext) -> int:
    networks = context.run(_of_host)

    def text() -> str:
        if arguments.quiet:
            return "".join(f"{network.name}\n" for network in networks)
        return table(HEADER, [_row(network) for network in networks])

    return context.show(arguments, lambda: [_json(network) for network in networks], text)


async def _of_host(engine: Runtime) -> Sequence[NetworkOverview]:
    """Return the networks of the host, without those in namespaces of other programs, which have one name."""
    return [network for network in await engine.backends.networks.networks() if not network.namespace]


def _inspect(arguments: Namespace, context: CommandContext) -> int:
    async def read(engine: Runtime) -> tuple[Sequence[NetworkOverview], Sequence[Task], Sequence[Repair]]:
        known = {network.name: network for network in await _of_host(engine)}
        wanted = [_lookup(name, known) for name in arguments.networks]
        tasks = await engine.tasks(ended=False)  # an ended task has no lease
        return wanted, tasks, await engine.backends.networks.recent_repairs()

    wanted, tasks, repairs = context.run(read)
    return context.show(
        arguments,
        lambda: [_details_json(network, tasks, repairs) for network in wanted],
        lambda: "\n".join(fields([*_fields(network, tasks, repairs)]) for network in wanted),
    )


def _repairs(arguments: Namespace, context: CommandContext) -> int:
    repairs = context.run(lambda engine: engine.backends.networks.recent_repairs())
    tasks = [", ".join([*each.tasks, *([f"{each.others} others"] if each.others else ())]) for each in repairs]
    rows = [(moment(each.time), each.what, names) for each, names in zip(repairs, tasks, strict=True)]
    return context.show(arguments, lambda: [_repair_json(each) for each in repairs], lambda: table(REPAIR_HEADER, rows))


def _lookup(name: NetworkName, known: dict[NetworkName, NetworkOverview]) -> NetworkOverview:
    if name not in known:
        raise InvalidRequestError(
            f"no network is named {name!r}: expected one of {', '.join(sorted(known))}.",
            f"Define it in /etc/solo5 as [network.{name}]: see solo5.toml(5).",
        )
    return known[name]


def _row(network: NetworkOverview) -> tuple[str, ...]:
    return (
        network.name,
        network.bridge,
        str(network.ipv4 or (network.without_ipv4 and network.ipv6) or ""),
        str(network.gateway4 or (network.without_ipv4 and network.gateway6) or ""),
        str(network.leases),
        "" if network.free is None else str(network.free),
    )


def _fields(network: NetworkOverview, tasks: Sequence[Task], repairs: Sequence[Repair]) -> Iterator[tuple[str, str]]:
    yield "Name", network.name
    yield from _address_fields(network)
    keys, values = _keys(network), vars(network) | vars(network.policy)
    for key in keys_on(HOST if network.join is None else LAN):
        if key in keys:
            label = keys[key].metadata.get("label") or key.replace("_", " ").capitalize()
            yield label, _shown(keys[key], values[key])
    if network.resolver.servers:
        yield "Name servers", ", ".join(map(str, network.resolver.servers))
    if network.resolver.search:
        yield "Search domains", ", ".join(network.resolver.search)
    for name, lease in _leases(network, tasks):
        yield "Lease", f"{' '.join(map(str, lease.addresses)) or '-'} {lease.mac} {name}/{lease.nic}"
    for task in tasks:
        for line, request in port_lines([port for _, port in _ports(network, [task])]):
            yield "Port", f"{line} {task.name}/{request.nic}"
    for address, count in _sorted(network.dropped.by_guest("connections")):
        yield "Refused", f"{address} {count} packets over the connection limit"
    for address, count in _sorted(network.dropped.by_guest("fragments")):
        yield "Dropped", f"{address} {count} fragments"
    for rule, count in network.dropped.by_rule().items():
        if count:
            yield "Drops", f"{rule} {count} ({DESCRIPTIONS[rule]})"
    for each in _of_network(repairs, network, tasks):
        yield "Repair", f"{moment(each.time)} {each.what}"


def _keys(network: NetworkOverview) -> dict[str, Entry]:
    """Return the keys of its settings that it has as they are set."""
    found = (*entries(NetworkTraits), *entries(NetworkPolicy))
    return {each.name: each for each in found if network.routes6 or "needs" not in each.metadata}


def _shown(key: Entry, value: object) -> str:
    shown = key.metadata["shown"] if value is None else key.type.write(value)
    if isinstance(shown, bool):
        return "yes" if shown else "no"
    return (", ".join(shown) or "none") if isinstance(shown, list) else str(shown)


def _sorted(counts: Mapping[IpAddress, int]) -> list[tuple[IpAddress, int]]:
    """Return counts by address, those of IPv4 first."""
    return sorted(counts.items(), key=lambda each: (each[0].version, int(each[0])))


def _address_fields(network: NetworkOverview) -> Iterator[tuple[str, str]]:
    join = network.join
    if join is None:
        yield "Bridge", f"{network.bridge} ({'up' if network.up else 'created on first use'})"
    else:
        yield "Joins", f"{network.bridge} ({'exists' if network.up else 'missing'})"
        yield "VLAN", str(join.vlan or "of a new port")
        leased = f"leased from {join.pool}" if join.pool else "requested by each NIC"
        yield "Addresses", leased if network.ipv4 else "by DHCP of the LAN, or none"
    if network.without_ipv4:
        yield "Range", "none: it leads nowhere" if network.name == NO_NETWORK else "none: IPv6 only"
    else:
        yield "Range", str(network.ipv4 or ("-" if join else "assigned on first use"))
        yield "Gateway", str(network.gateway4 or "-")
    if network.ipv6 is not None:
        yield "IPv6 prefix", str(network.ipv6)
        yield "IPv6 gateway", str(network.gateway6 or "-")
    if join is not None:
        shown = f"leased from {join.pool6 or network.ipv6}" if network.ipv6 else "any" if join.ipv6 else "none"
        yield "IPv6 addresses", shown
    yield "MTU", str(network.mtu or "-")


def _leases(network: NetworkOverview, tasks: Sequence[Task]) -> list[tuple[str, Lease]]:
    leases = [(task.name, lease) for task in tasks if task.reservation for lease in task.reservation.leases]
    return [(name, lease) for name, lease in leases if lease.network == network.name]


def _ports(network: NetworkOverview, tasks: Sequence[Task]) -> list[tuple[str, PortRequest]]:
    held = [(task.name, task.reservation) for task in tasks if task.reservation]
    ports = [(name, reservation, port) for name, reservation in held for port in reservation.ports]
    return [(name, port) for name, found, port in ports if found.lease(port.nic).network == network.name]


def _of_network(repairs: Sequence[Repair], network: NetworkOverview, tasks: Sequence[Task]) -> list[Repair]:
    """Return the repairs that concerned tasks which are on the network now, or that name it."""
    names = {task for task, _ in _leases(network, tasks)}
    return [each for each in repairs if names & {*each.tasks} or f"network {network.name} " in each.what]


def _details_json(network: NetworkOverview, tasks: Sequence[Task], repairs: Sequence[Repair]) -> dict[str, object]:
    leases = [
        {
            "task": task,
            "nic": lease.nic,
            "ipv4": str(lease.address) if lease.address else None,
            **({"ipv6": str(lease.address6)} if lease.address6 else {}),
            "mac": lease.mac,
            "tap": lease.tap,
            "refused": (drops := network.dropped.of_guest(lease.addresses, lease.tap))["connections"],
            "fragments": drops["fragments"],
            "drops": drops,
        }
        for task, lease in _leases(network, tasks)
    ]
    return {
        **_json(network),
        "dns": [*map(str, network.resolver.servers)],
        "search": [*network.resolver.search],
        "leases": leases,
        "ports": [{"task": task, **port_json(port)} for task, port in _ports(network, tasks)],
        "drops": network.dropped.by_rule(),
        "repairs": [_repair_json(each) for each in _of_network(repairs, network, tasks)],
    }


def _repair_json(repair: Repair) -> dict[str, object]:
    return {"time": moment(repair.time), "repair": repair.what, "tasks": [*repair.tasks], "other_tasks": repair.others}


def _json(network: NetworkOverview) -> dict[str, object]:
    known = document(network, complete=True) | document(network.policy, complete=True)
    keys = ("name", "bridge", "mtu", "up", "free", "ipv4", "gateway4", "ipv6", "gateway6", *_keys(network))
    shown = {key: known[key] for key in keys if key in known}
    if network.join is not None:
        shown = {"join": True, "ipv6": False, **document(network.join), **shown}
    return {**shown, "in_use": network.leases}
