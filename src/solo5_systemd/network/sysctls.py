"""The sysctls below net that the service changes, and restores after the last network is down."""

from collections.abc import Mapping
from pathlib import Path

from solo5_systemd.errors import HostError

_ROOT = Path("/proc/sys/net")
IP_FORWARD = "ipv4/ip_forward"
"""Needed for all links: packets to published ports, and replies to guests, arrive on any link."""

_CHANGED_ALONG = ("ipv4/conf/all/accept_redirects", "ipv4/conf/default/forwarding")
"""The sysctls that the kernel sets with ip_forward (inet_forward_change of net/ipv4/devinet.c), besides each link's
`forwarding`."""


def values_to_restore() -> dict[str, str]:
    """Return the values that `restore` needs to undo `enable_forwarding`; only ip_forward where that is 1 already.

    Raises:
        HostError: a value cannot be read.
    """
    before = {IP_FORWARD: _read(IP_FORWARD)}
    if was_forwarding(before):
        return before
    links = (path.parent.name for path in (_ROOT / "ipv4/conf").glob("*/forwarding"))
    forwarding = (f"ipv4/conf/{link}/forwarding" for link in links if link not in ("all", "default"))
    return before | {name: value for name in (*_CHANGED_ALONG, *forwarding) if (value := _read(name)) != ""}


def was_forwarding(before: Mapping[str, str]) -> bool:
    """Return whether the host forwarded packets before the first network was up, by the saved values."""
    return before.get(IP_FORWARD) == "1"


def enable_forwarding() -> None:
    """Set ip_forward to 1.

    Raises:
        HostError: the setting cannot be written.
    """
    if _read(IP_FORWARD) != "1":
        _write(IP_FORWARD, "1")


def restore(before: Mapping[str, str]) -> None:
    """Restore the saved values, unless ip_forward was 1 before or has been set to 0 since.

    Raises:
        HostError: a setting cannot be written.
    """
    if not before or was_forwarding(before) or _read(IP_FORWARD) != "1":
        return
    _write(IP_FORWARD, before[IP_FORWARD])
    for name, value in before.items():
        if _read(name) not in ("", value):
            _write(name, value)


def _read(name: str) -> str:
    """Return a value; empty where its link no longer exists."""
    try:
        return (_ROOT / name).read_text().strip()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise HostError(f"sysctl net/{name} cannot be read: {error.strerror}.") from error


def _write(name: str, value: str) -> None:
    try:
        (_ROOT / name).write_text(value)
    except OSError as error:
        raise HostError(f"sysctl net/{name} cannot be set to {value}: {error.strerror}.") from error


def set_for_link(family: str, link: str, name: str, value: str) -> None:
    """Set `conf/LINK/NAME`; a no-op where the kernel lacks the family (`ipv6.disable=1`)."""
    path = _ROOT / family / "conf" / link / name
    if path.exists():
        path.write_text(value)
