"""The sysctls below net that the service changes, and restores after the last network is down."""

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from solo5_systemd.errors import HostError

_ROOT = Path("/proc/sys/net")
_CONFIGURED = tuple(Path(place, "sysctl.d") for place in ("/etc", "/run", "/usr/local/lib", "/usr/lib"))
"""The directories of sysctl.d(5): a file hides those of its name in later ones."""

_FORWARDING = {
    4: re.compile(r"-?net[./]ipv4[./](?:ip_forward|conf[./]all[./]forwarding)\s*=\s*(\S+)"),
    6: re.compile(r"-?net[./]ipv6[./]conf[./]all[./]forwarding\s*=\s*(\S+)"),
}
"""By version of IP: a line of sysctl.d(5) that has the host forward packets."""
IP_FORWARD = "ipv4/ip_forward"
"""Needed for all links: packets to published ports, and replies to guests, arrive on any link."""

_NEIGHBOUR_LIMITS = {
    family: tuple(f"{family}/neigh/default/gc_thresh{number}" for number in (1, 2, 3)) for family in ("ipv4", "ipv6")
}
_NEIGHBOURS_BEYOND = 512
"""Entries for neighbours that are no guests: half of the kernel's default limit."""

_log = logging.getLogger(__name__)

_CHANGED_ALONG = ("ipv4/conf/all/accept_redirects", "ipv4/conf/default/forwarding")
"""The sysctls that the kernel sets with ip_forward (inet_forward_change of net/ipv4/devinet.c), besides each link's
`forwarding`."""


def values_to_restore() -> dict[str, str]:
    """Return the values that `restore` needs to undo `enable_forwarding`; only ip_forward where that is 1 already.

    Raises:
        HostError: a value cannot be read.
    """
    before = {IP_FORWARD: read_sysctl(IP_FORWARD)}
    if was_forwarding(before):
        return before
    links = (path.parent.name for path in (_ROOT / "ipv4/conf").glob("*/forwarding"))
    forwarding = (f"ipv4/conf/{link}/forwarding" for link in links if link not in ("all", "default"))
    return before | {name: value for name in (*_CHANGED_ALONG, *forwarding) if (value := read_sysctl(name)) != ""}


def was_forwarding(before: Mapping[str, str]) -> bool:
    """Return whether the host forwarded packets before the first network was up, by the saved values."""
    return before.get(IP_FORWARD) == "1"


def is_configured_to_forward(version: int = 4, directories: Sequence[Path] = _CONFIGURED) -> bool:
    """Return whether sysctl.d(5) has the host forward packets of a version of IP: then it is a router in any case."""
    files = {path.name: path for directory in reversed(directories) for path in directory.glob("*.conf")}
    value = "0"
    for _, path in sorted(files.items()):
        try:
            lines = path.read_text(errors="replace").splitlines()
        except OSError as error:
            _log.warning("%s cannot be read: %s", path, error.strerror)
            continue
        for line in lines:
            if found := _FORWARDING[version].fullmatch(line.strip()):
                value = found[1]
    return value == "1"


def enable_forwarding() -> bool:
    """Set ip_forward to 1; return whether it was another value.

    Raises:
        HostError: the setting cannot be written.
    """
    if read_sysctl(IP_FORWARD) == "1":
        return False
    write_sysctl(IP_FORWARD, "1")
    return True


def restore(before: Mapping[str, str]) -> None:
    """Restore the saved values, unless ip_forward was 1 before or has been set to 0 since.

    Raises:
        HostError: a setting cannot be written.
    """
    if not before or was_forwarding(before) or read_sysctl(IP_FORWARD) != "1":
        return
    write_sysctl(IP_FORWARD, before[IP_FORWARD])
    for name, value in before.items():
        if read_sysctl(name) not in ("", value):
            write_sysctl(name, value)


def make_room_for_neighbours(guests: int, room: int, family: str = "ipv4") -> int:
    """Raise the limits of the host's neighbour table, so that it has room for the guests and for hosts beyond.

    They are never lowered: the limits are those of all network namespaces, and cost no memory by themselves. Only the
    first namespace has these settings; a container has what its host gives it.

    Args:
        guests: the number of addresses of guests, each of which is a neighbour.
        room: the returned value of the last call; 0 for the first call.
        family: `ipv4` or `ipv6`, which have a table each.

    Returns:
        The entries that the table can have, as far as this service has set or read it.
    """
    needed = _NEIGHBOURS_BEYOND + 2 * guests
    if needed <= room:
        return room
    try:
        names = _NEIGHBOUR_LIMITS[family]
        limit = int(read_sysctl(names[-1]) or needed)
        if limit < needed:
            limit = 1 << (needed - 1).bit_length()
            # The highest first: each is above the former one, as in the kernel's defaults of 128, 512 and 1024.
            for name, value in zip(reversed(names), (limit, limit // 2, limit // 8), strict=True):
                if int(read_sysctl(name)) < value:
                    write_sysctl(name, str(value))
            _log.info("neighbour table of %s: room for %d entries, for %d guests", family, limit, guests)
    except (HostError, ValueError) as error:  # a guest that has no entry is reached again when another entry expires
        _log.warning("neighbour table of %s: cannot make room for %d guests: %s", family, guests, error)
        return needed
    return limit


def read_sysctl(name: str) -> str:
    """Return a value below net; empty where its link no longer exists.

    Raises:
        HostError: the value cannot be read.
    """
    try:
        return (_ROOT / name).read_text().strip()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise HostError(f"sysctl net/{name} cannot be read: {error.strerror}.") from error


def write_sysctl(name: str, value: str) -> None:
    """Write a value below net.

    Raises:
        HostError: the value cannot be written.
    """
    try:
        (_ROOT / name).write_text(value)
    except OSError as error:
        raise HostError(f"sysctl net/{name} cannot be set to {value}: {error.strerror}.") from error


def is_set_for_link(family: str, link: str, name: str, value: str) -> bool:
    """Return whether `conf/LINK/NAME` has a value; False without the link."""
    return read_sysctl(f"{family}/conf/{link}/{name}") == value


def set_for_link(family: str, link: str, name: str, value: str) -> None:
    """Set `conf/LINK/NAME`; a no-op where the kernel lacks the family (`ipv6.disable=1`)."""
    path = _ROOT / family / "conf" / link / name
    if path.exists():
        path.write_text(value)
