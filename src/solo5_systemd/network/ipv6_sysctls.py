"""The IPv6 sysctls that the service changes for networks with IPv6, and restores after the last one is down.

IPv6 has no ip_forward of its own: `conf/all/forwarding` makes every link a router's. A router ignores router
advertisements, so that the host would lose its default route: `accept_ra` 2 is set beforehand where it is 1.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from solo5_systemd.base.errors import HostError
from solo5_systemd.network.sysctls import read_sysctl, set_for_link, write_sysctl

_CONF = Path("/proc/sys/net/ipv6/conf")
FORWARDING = "ipv6/conf/all/forwarding"
"""Needed for all links: the kernel forwards a packet whatever the `forwarding` of the link on which it arrives."""

_FOR_NEW_LINKS = "ipv6/conf/default/forwarding"
"""Of no effect on forwarding. A write to `all/forwarding` sets it, also one that changes nothing else: this service
clears it after its own write, so that 1 shows one of another program.
"""

_ACCEPT_RA, _AS_ROUTER, _AS_HOST = "accept_ra", "2", "1"

BRIDGED = "bridge/bridge-nf-call-ip6tables"
"""Only with br_netfilter, for each network namespace: bridged packets pass table ip6, before the kernel has received
them (ip6_rcv_core of net/ipv6/ip6_input.c), which drops a packet that was translated to ::1 there.
"""


def is_available() -> bool:
    """Return whether the kernel has IPv6: not with ipv6.disable=1."""
    return _CONF.exists()


def values_to_restore(*, shared: bool) -> dict[str, str]:
    """Return the values that `restore` needs to undo `enable_forwarding`; only `forwarding` where that is 1 already.

    Args:
        shared: with that to undo `receive_untranslated`; there is none without br_netfilter.

    Raises:
        HostError: a value cannot be read.
    """
    before = {FORWARDING: read_sysctl(FORWARDING)}
    if shared and (bridged := read_sysctl(BRIDGED)):
        before[BRIDGED] = bridged
    if was_forwarding(before):
        return before
    names = (f"ipv6/conf/{link}/{name}" for link in _links() for name in ("forwarding", _ACCEPT_RA))
    return before | {name: value for name in names if (value := read_sysctl(name)) != ""}


def was_forwarding(before: Mapping[str, str]) -> bool:
    """Return whether the host forwarded IPv6 packets before the first network with IPv6, by the saved values."""
    return before.get(FORWARDING) == "1"


def is_router(before: Mapping[str, str]) -> bool:
    """Return whether the host forwards IPv6 packets for others than this service, by the saved and present values.

    Raises:
        HostError: a setting cannot be read.
    """
    return was_forwarding(before) or read_sysctl(FORWARDING) == read_sysctl(_FOR_NEW_LINKS) == "1"


def enable_forwarding() -> bool:
    """Set `forwarding` to 1, and before it `accept_ra` of links and of the default for new links from 1 to 2.

    Return whether `forwarding` was another value.

    With `forwarding` the kernel removes the default routes that it has learned on links without `accept_ra` 2
    (rt6_purge_dflt_routers of net/ipv6/route.c). `all/accept_ra` has no effect.

    Raises:
        HostError: a setting cannot be written.
    """
    if read_sysctl(FORWARDING) == "1":
        return False
    for link in _links():
        name = f"ipv6/conf/{link}/{_ACCEPT_RA}"
        if read_sysctl(name) == _AS_HOST:
            write_sysctl(name, _AS_ROUTER)
    write_sysctl(FORWARDING, "1")
    try:
        write_sysctl(_FOR_NEW_LINKS, "0")
    except HostError:  # otherwise the host would be taken for a router of others
        write_sysctl(FORWARDING, "0")
        raise
    return True


def restore(before: Mapping[str, str]) -> None:
    """Restore the saved values; forwarding not if the host is a router for others, or it has been set to 0 since.

    `accept_ra` becomes 1 again where it still is 2, also on links that are newer than the saved values.

    Raises:
        HostError: a setting cannot be written.
    """
    if BRIDGED in before and read_sysctl(BRIDGED) not in ("", before[BRIDGED]):
        write_sysctl(BRIDGED, before[BRIDGED])
    if FORWARDING not in before or is_router(before) or read_sysctl(FORWARDING) != "1":
        return
    write_sysctl(FORWARDING, before[FORWARDING])
    was_host = before.get(f"ipv6/conf/default/{_ACCEPT_RA}") == _AS_HOST
    for link in _links():
        forwarding, accept_ra = f"ipv6/conf/{link}/forwarding", f"ipv6/conf/{link}/{_ACCEPT_RA}"
        if before.get(forwarding, "0") != read_sysctl(forwarding):
            write_sysctl(forwarding, before.get(forwarding, "0"))
        earlier = before.get(accept_ra, _AS_HOST if was_host else "")
        if earlier == _AS_HOST and read_sysctl(accept_ra) == _AS_ROUTER:
            write_sysctl(accept_ra, _AS_HOST)


def receive_untranslated() -> bool:
    """Have packets translated after they were received from a bridge, so that they can be for ::1.

    Return whether that was not so. A no-op without br_netfilter.

    Raises:
        HostError: the setting cannot be written.
    """
    if read_sysctl(BRIDGED) in ("", "0"):
        return False
    write_sysctl(BRIDGED, "0")
    return True


def _links() -> Iterator[str]:
    """Yield the name of each link with IPv6, and `default`."""
    for path in _CONF.glob(f"*/{_ACCEPT_RA}"):
        if path.parent.name != "all":
            yield path.parent.name


def set_up_bridge(bridge: str) -> None:
    """Enable IPv6 on a bridge that is to have the address of a router, at once and without router advertisements.

    Raises:
        OSError: a setting cannot be written.
    """
    values = {"accept_ra": "0", "autoconf": "0", "accept_dad": "0", "forwarding": "1", "disable_ipv6": "0"}
    for name, value in values.items():
        set_for_link("ipv6", bridge, name, value)
