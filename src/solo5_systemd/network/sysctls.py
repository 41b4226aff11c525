"""Kernel settings of this network namespace: what we changed is remembered and put back."""

from collections.abc import Mapping
from pathlib import Path

from solo5_systemd.errors import HostError

_ROOT = Path("/proc/sys/net")
FORWARDING = {"ipv4/ip_forward": "1"}
"""What routing to our networks needs."""


def apply(wanted: Mapping[str, str]) -> None:
    """Write settings, by their path below /proc/sys/net.

    Raises:
        HostError: one cannot be written.
    """
    for name, value in wanted.items():
        try:
            (_ROOT / name).write_text(value)
        except OSError as error:
            raise HostError(f"kernel setting net/{name} cannot be set to {value}: {error.strerror}.") from error


def current(names: Mapping[str, str]) -> dict[str, str]:
    """The values now.

    Raises:
        HostError: one cannot be read.
    """
    try:
        return {name: (_ROOT / name).read_text().strip() for name in names}
    except OSError as error:
        raise HostError(f"kernel setting {error.filename} cannot be read: {error.strerror}.") from error


def restore(before: Mapping[str, str]) -> None:
    """Put back what was there, unless somebody set yet another value since."""
    now = current(before)
    apply({name: value for name, value in before.items() if now[name] == FORWARDING.get(name)})


def set_for_link(family: str, link: str, name: str, value: str) -> None:
    """Set `conf/LINK/NAME`; nothing happens where the kernel lacks the family (`ipv6.disable=1`)."""
    path = _ROOT / family / "conf" / link / name
    if path.exists():
        path.write_text(value)
