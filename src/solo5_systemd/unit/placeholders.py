"""Placeholders in the guest's arguments, replaced by values of the reservation.

    --ipv4={net.service.ipv4_cidr} --ipv4-gateway={net.service.gateway4} --name={name}

A doubled brace is a literal brace: `{{name}}` reaches the guest as `{name}`.
"""

import re
from collections.abc import Iterable, Mapping

from solo5_systemd.errors import InvalidRequestError
from solo5_systemd.names import TaskName
from solo5_systemd.network.model import Lease

COMMAND_LINE_MAX = 8191
"""Bytes; a tender's limit for all arguments joined by blanks (Solo5's HVT_CMDLINE_SIZE)."""

_TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


def placeholders(task: TaskName, memory_mib: int, leases: Iterable[Lease]) -> dict[str, str]:
    """Return the value of each placeholder that the arguments of this task may contain."""
    values = {"name": str(task), "memory_mib": str(memory_mib)}
    for lease in leases:
        values |= {
            f"net.{lease.nic}.ipv4": str(lease.ipv4.ip),
            f"net.{lease.nic}.ipv4_cidr": str(lease.ipv4),
            f"net.{lease.nic}.prefix4": str(lease.ipv4.network.prefixlen),
            f"net.{lease.nic}.netmask4": str(lease.ipv4.netmask),
            f"net.{lease.nic}.gateway4": str(lease.gateway4),
            f"net.{lease.nic}.mac": lease.mac,
            f"net.{lease.nic}.mtu": str(lease.mtu),
            f"net.{lease.nic}.network": lease.network,
            f"net.{lease.nic}.tap": lease.tap,
        }
    return values


def expand(arguments: Iterable[str], values: Mapping[str, str]) -> tuple[str, ...]:
    """Return the arguments with all placeholders replaced.

    Raises:
        InvalidRequestError: an unknown placeholder, a single brace, a NUL byte, or more than COMMAND_LINE_MAX bytes.
    """
    expanded = tuple(_expand_one(argument, values) for argument in arguments)
    if any("\0" in argument for argument in expanded):
        raise InvalidRequestError("an argument holds a NUL byte: expected text.")
    length = len(" ".join(expanded).encode("utf-8", "surrogateescape"))
    if length > COMMAND_LINE_MAX:
        raise InvalidRequestError(
            f"the guest's arguments are {length} bytes long: expected at most {COMMAND_LINE_MAX}, the tender's limit."
        )
    return expanded


def _expand_one(argument: str, values: Mapping[str, str]) -> str:
    def replace(match: re.Match[str]) -> str:
        token = match[0]
        if token in ("{{", "}}"):
            return token[0]
        if match[1] in values:
            return values[match[1]]
        raise InvalidRequestError(
            f"argument {argument!r} has the unknown placeholder {token!r}: "
            f"expected one of {', '.join(f'{{{name}}}' for name in sorted(values))}.",
            "Double the braces ({{ and }}) to pass them on as they are.",
        )

    return _TOKEN.sub(replace, argument)
