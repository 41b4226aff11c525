"""Placeholders in the guest's arguments, replaced by values of the task.

    --ipv4={net.service.ipv4_cidr} --ipv4-gateway={net.service.gateway4} --resolver={dns1} --name={hostname}
    {mirage} --dns-servers={dns.udp}

`{mirage}` is an argument of its own, and expands to several. A doubled brace is a literal brace: `{{name}}` reaches the
guest as `{name}`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.base.names import TaskName, host_name, primary_nic
from solo5_systemd.network.model import Lease, PortRequest, Protocol
from solo5_systemd.settings.network import NAMESPACE_NETWORK, NO_NETWORK
from solo5_systemd.settings.resolver import UNSET, Host, Resolver

COMMAND_LINE_MAX = 8191
"""Bytes; a tender's limit for all arguments joined by blanks (Solo5's HVT_CMDLINE_SIZE)."""

SERVERS, SEARCH, NTP, HOSTNAME, HOSTS = "dns", "search", "ntp", "hostname", "hosts"
"""Names of placeholders. There are others of the name servers: of one, or with a protocol."""

_TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_SERVERS = re.compile(r"dns(\.udp|\.tcp|[1-9][0-9]{0,4})?", re.ASCII)


def verbatim(text: str) -> str:
    """Return an argument that `expand` makes the text of again: of data, which may have braces."""
    return text.replace("{", "{{").replace("}", "}}")


def placeholders(
    task: TaskName,
    memory_mib: int,
    leases: Iterable[Lease],
    *,
    ports: Iterable[PortRequest] = (),
    labels: Iterable[tuple[str, int]] = (),
    resolver: Resolver = UNSET,
    hostname: str = "",
    hosts: Sequence[Host] = (),
) -> dict[str, str]:
    """Return the value of each placeholder that the arguments of this task may contain.

    Args:
        resolver: name servers, search domains and NTP servers; what it does not have has no placeholder.
        hostname: of the guest; empty: that of the task.

    Raises:
        InvalidRequestError: a name is for the gateway of a guest that has none.
    """
    leases = tuple(leases)
    values = {"name": str(task), "memory_mib": str(memory_mib), HOSTNAME: hostname or host_name(task)}
    for lease in leases:
        values |= {
            **_leased(lease),
            f"net.{lease.nic}.mac": lease.mac,
            f"net.{lease.nic}.mtu": str(lease.mtu),
            f"net.{lease.nic}.network": lease.network,
            f"net.{lease.nic}.tap": lease.tap,
        }
    for port in ports:  # the first of several host ports that lead to one
        values.setdefault(f"port.{port.port}/{port.protocol}", str(port.host_port))
    values |= {f"port.{label}": str(number) for label, number in labels}
    if hosts:
        values[HOSTS] = ",".join(f"{host.name}={host.address or _gateway(host, leases)}" for host in hosts)
    if servers := resolver.servers:
        values |= {f"dns{number}": str(server) for number, server in enumerate(servers, 1)}
        values["dns"] = ",".join(map(str, servers))
        for protocol in Protocol:  # as dns-client of MirageOS 4.4 or later takes them; it refuses a plain address
            values[f"dns.{protocol}"] = ",".join(f"{protocol}:{server}" for server in servers)
    if resolver.search:
        values[SEARCH] = ",".join(resolver.search)
    if resolver.ntp:
        values[NTP] = ",".join(map(str, resolver.ntp))
    return values


def _gateway(host: Host, leases: Sequence[Lease]) -> str:
    """Return the gateway of the primary NIC, which a name without an address is for."""
    primary = primary_nic([lease.nic for lease in leases])
    lease = next((lease for lease in leases if lease.nic == primary), None)
    gateway = lease and (lease.gateway4 or lease.gateway6)
    if gateway is None:
        of = f"NIC {primary} has no gateway" if lease else "the guest has no NIC"
        raise InvalidRequestError(f"host {host} is for the guest's gateway, and {of}: expected an address.")
    return str(gateway)


def _leased(lease: Lease) -> dict[str, str]:
    """Return the placeholders of a lease's addresses; none of an address that it does not have."""
    values: dict[str, object] = {"gateway4": lease.gateway4}
    if own := lease.ipv4:
        values |= {"ipv4": own.ip, "ipv4_cidr": own, "prefix4": own.network.prefixlen, "netmask4": own.netmask}
    if six := lease.ipv6:
        values |= {"ipv6": six.ip, "ipv6_cidr": six, "prefix6": six.network.prefixlen, "gateway6": lease.gateway6}
    return {f"net.{lease.nic}.{key}": str(value) for key, value in values.items() if value is not None}


_OF_IPV4 = ("ipv4", "ipv4_cidr", "prefix4", "netmask4", "gateway4")
_OF_IPV6 = ("ipv6", "ipv6_cidr", "prefix6", "gateway6")


def _lack(name: str, leases: Iterable[Lease]) -> tuple[str, str] | None:
    """Return what the NIC of a placeholder lacks for its value, and what to do; None: it is not one of a NIC."""
    of, _, key = name.rpartition(".")
    lease = next((each for each in leases if f"net.{each.nic}" == of), None)
    if lease is None or key not in (*_OF_IPV4, *_OF_IPV6):
        return None
    place = f"Set network.{lease.network}"
    if key in _OF_IPV6:
        lack, hint = "IPv6 gateway" if lease.ipv6 else "leased IPv6 address", f"{place}.ipv6 = true in /etc/solo5."
        if lease.network == NAMESPACE_NETWORK:
            hint = "A guest has IPv6 where the interface of its network namespace has."
    elif lease.ipv6 and not lease.ipv4:
        lack, hint = "leased IPv4 address", f"Use those of IPv6, such as {{net.{lease.nic}.ipv6_cidr}}."
    else:
        lack, own = ("gateway", "gateway4") if lease.ipv4 else ("leased address", "ipv4")
        hint = f"{place}.{own} in /etc/solo5, or have the guest use DHCP."
        if lease.network == NO_NETWORK:
            hint = "Connect the NIC to another network."
    return f"NIC {lease.nic} has no {lack} in network {lease.network}", hint


def mirage(leases: Sequence[Lease]) -> dict[str, tuple[str, ...]]:
    """Return the arguments for which `{mirage}` stands, and `{mirage.NIC}` of each NIC.

    They are those of all images (docs/decisions/guest-arguments.md). The stack of a second NIC has a group, which
    prefixes them (`--management-ipv4`); it is not in the manifest, so it is named explicitly.
    """
    primary = primary_nic([lease.nic for lease in leases])
    found = {f"mirage.{lease.nic}": _addresses(lease, f"{lease.nic}-") for lease in leases}
    return found | {"mirage": next((_addresses(lease, "") for lease in leases if lease.nic == primary), ())}


def _addresses(lease: Lease, prefix: str) -> tuple[str, ...]:
    """Return the arguments of a NIC; none where the LAN's DHCP has its address."""
    values = {
        "ipv4": lease.ipv4,
        "ipv4-gateway": lease.ipv4 and lease.gateway4,
        "ipv6": lease.ipv6,
        "ipv6-gateway": lease.gateway6,
    }
    return tuple(f"--{prefix}{key}={value}" for key, value in values.items() if value is not None)


def used(arguments: Iterable[str]) -> frozenset[str]:
    """Return the names of the placeholders in the arguments, known or not; SERVERS for each of the name servers."""
    found = {match[1] for argument in arguments for match in _TOKEN.finditer(argument)}
    return frozenset(SERVERS if _SERVERS.fullmatch(name) else name for name in found if name is not None)


def expand(arguments: Sequence[str], values: Mapping[str, str], leases: Sequence[Lease] = ()) -> tuple[str, ...]:
    """Return the arguments with all placeholders replaced.

    Raises:
        InvalidRequestError: a placeholder that is unknown or has no value, a single brace, a NUL byte, or more than
            COMMAND_LINE_MAX bytes.
    """
    # Before any value is written out: a name of some bytes can stand for kilobytes.
    lengths = {name: _bytes(value) for name, value in values.items()}
    tokens = (match[1] for argument in arguments for match in _TOKEN.finditer(argument))
    _check_length(sum(lengths.get(name, 0) for name in tokens))
    groups = {f"{{{name}}}": words for name, words in mirage(leases).items()}

    def replace(match: re.Match[str]) -> str:
        if match[0] in ("{{", "}}"):
            return match[0][0]
        if match[1] not in values:
            raise _error(match, values, leases)
        return values[match[1]]

    found = (groups[each] if each in groups else (_TOKEN.sub(replace, each),) for each in arguments)
    expanded = tuple(chain.from_iterable(found))
    if any("\0" in argument for argument in expanded):
        raise InvalidRequestError("an argument holds a NUL byte: expected text.")
    _check_length(_bytes(" ".join(expanded)))
    return expanded


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogateescape"))


def _check_length(length: int) -> None:
    if length > COMMAND_LINE_MAX:
        raise InvalidRequestError(
            f"the guest's arguments are {length} bytes long: expected at most {COMMAND_LINE_MAX}, the tender's limit."
        )


def _error(found: re.Match[str], values: Mapping[str, str], leases: Sequence[Lease]) -> InvalidRequestError:
    """Return the error of a match of `_TOKEN` in an argument that has no value."""
    argument, token, name, groups = found.string, found[0], found[1] or "", mirage(leases)
    has, hint = f"argument {argument!r} has {token}", ""
    if name in groups:
        has += " within other text: expected it as an argument of its own, since it expands to several."
    elif name == SEARCH:
        has += ", and there is no search domain: expected one in the job, the network or the host's resolv.conf."
        hint = f"Set {_WHERE.format(key='search', option='--dns-search', job='searches', example='example.org')}."
    elif name in _OF_TASK:
        what, option, of_job = _OF_TASK[name]
        has += f", and there is no {what}: expected one or more in the job."
        hint = f"Set {of_job} in the job's config, or {option} of solo5ctl run."
    elif _SERVERS.fullmatch(name):
        count = len(values["dns"].split(",")) if "dns" in values else 0
        has += f", and the last name server is {{dns{count}}}" if count else ", and there is no name server"
        has += ": expected name servers that guests can use in the job, the network or the host's resolv.conf."
        hint = f"Set {_WHERE.format(key='dns', option='--dns', job='servers', example='9.9.9.9')}."
    elif lack := _lack(name, leases):
        has += f", and {lack[0]}: expected no such placeholder."
        hint = lack[1]
    else:
        known = ", ".join(f"{{{name}}}" for name in sorted((*values, *groups)))
        has = f"argument {argument!r} has the unknown placeholder {token!r}: expected one of {known}."
        hint = "Double the braces ({{ and }}) to pass them on as they are, or pass the text as verbatim."
    return InvalidRequestError(has, hint)


_OF_TASK = {
    HOSTS: ("host", "--add-host", 'extra_hosts = ["db:192.0.2.7"]'),
    NTP: ("NTP server", "--ntp", 'ntp = ["192.0.2.123"]'),
}
"""Placeholders whose values only the task itself has: what they are, with their options."""

_WHERE = (
    '{key} = ["{example}"] in [network.NAME] of /etc/solo5, {option} of solo5ctl run, or '
    'network {{ dns {{ {job} = ["{example}"] }} }} in the job'
)
