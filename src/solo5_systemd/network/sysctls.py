"""The sysctls below net that the service changes, and restores after the last network is down.

Functions raise HostError for a value that can be neither read nor written.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

from solo5_systemd.base.errors import HostError, host_errors

_ROOT = Path("/proc/sys/net")
IP_FORWARD = "ipv4/ip_forward"
"""Set by a program or an operator for whom the host is a router, and never by this service.

The kernel forwards an IPv4 packet if the link on which it arrives has `forwarding`. This service sets that of each
link, since packets to published ports and replies to guests arrive on any. So a write of others to ip_forward is a
change, which the kernel announces.
"""

_FOR_NEW_LINKS = "ipv4/conf/default/forwarding"

_OF_LINK = re.compile(r"ipv4/conf/([\w.-]+)/forwarding", re.ASCII)
"""The `forwarding` of a link whose name has no other meaning in nftables."""


def is_router() -> bool:
    """Return whether the host forwards IPv4 packets for others than this service."""
    return read_sysctl(IP_FORWARD) == "1"


def values_to_restore() -> dict[str, str]:
    """Return the values that `restore` needs to undo `enable_forwarding`; only ip_forward where that is 1 already."""
    before = {IP_FORWARD: read_sysctl(IP_FORWARD)}
    return before if is_router() else before | {name: read_sysctl(name) for name in (*_links(), _FOR_NEW_LINKS)}


def forwarding_links(before: Mapping[str, str]) -> Sequence[str]:
    """Return the links that another program has had forward packets, one by one, by the saved values."""
    names = (_OF_LINK.fullmatch(name) for name, value in before.items() if value == "1" and name != _FOR_NEW_LINKS)
    return sorted(name[1] for name in names if name)


def enable_forwarding() -> bool:
    """Have all links forward packets, also new ones, unless the host is a router; return whether one did not."""
    if is_router():
        return False
    names = chain(_links(), (_FOR_NEW_LINKS,), _links())  # and those that were made meanwhile
    return bool([name for name in names if write_sysctl(name, "1")])


def restore(before: Mapping[str, str]) -> None:
    """Restore the saved values, unless the host has become a router."""
    if not before or is_router():
        return
    for name in (_FOR_NEW_LINKS, *_links()):
        write_sysctl(name, before.get(name, "0"))


def _links() -> Iterator[str]:
    """Yield the name of `forwarding` of each link."""
    for link in os.listdir(f"{_ROOT}/ipv4/conf"):  # noqa: PTH208 - for strings, as in lease_files
        if link not in ("all", "default"):  # `all` is ip_forward by another name
            yield f"ipv4/conf/{link}/forwarding"


def read_sysctl(name: str) -> str:
    """Return a value below net; empty where its link no longer exists."""
    with host_errors(f"sysctl net/{name} cannot be read"):
        try:
            with open(f"{_ROOT}/{name}", encoding="ascii") as file:  # noqa: PTH123 - no Path, as in lease_files
                return file.read().strip()
        except FileNotFoundError:
            return ""


def write_sysctl(name: str, value: str) -> bool:
    """Write a value below net, unless it is that already, or does not exist; return whether it is written.

    One does not exist if its link no longer does, or the kernel lacks it, such as those of IPv6 with `ipv6.disable=1`.
    """
    if read_sysctl(name) in ("", value):
        return False
    with host_errors(f"sysctl net/{name} cannot be set to {value}"):
        try:
            with open(f"{_ROOT}/{name}", "w", encoding="ascii") as file:  # noqa: PTH123
                file.write(value)
        except FileNotFoundError:
            return False
    return True


# -- IPv6 --------------------------------------------------------------------------------------------------------------
# It has no ip_forward of its own: `conf/all/forwarding` makes every link a router's. A router ignores router
# advertisements, so that the host would lose its default route: `accept_ra` 2 is set beforehand where it is 1.

IPV6_FORWARDING = "ipv6/conf/all/forwarding"
"""Needed for all links: the kernel forwards a packet whatever the `forwarding` of the link on which it arrives."""

_FOR_NEW_LINKS6 = "ipv6/conf/default/forwarding"
"""Of no effect on forwarding. A write to `all/forwarding` sets it, also one that changes nothing else: this service
clears it after its own write, so that 1 shows one of another program.
"""

_ACCEPT_RA, _AS_ROUTER, _AS_HOST = "accept_ra", "2", "1"

_BRIDGED = "bridge/bridge-nf-call-ip6tables"
"""Only with br_netfilter, for each network namespace: bridged packets pass table ip6, before the kernel has received
them (ip6_rcv_core of net/ipv6/ip6_input.c), which drops a packet that was translated to ::1 there.
"""


def has_ipv6() -> bool:
    """Return whether the kernel has IPv6: not with ipv6.disable=1."""
    return (_ROOT / "ipv6/conf").exists()


def values_to_restore6(*, shared: bool) -> dict[str, str]:
    """Return the values that `restore6` needs to undo `enable_forwarding6`; only `forwarding` where that is 1 already.

    `shared`: with that to undo `receive_untranslated`; there is none without br_netfilter.
    """
    before = {IPV6_FORWARDING: read_sysctl(IPV6_FORWARDING)}
    if shared and (bridged := read_sysctl(_BRIDGED)):
        before[_BRIDGED] = bridged
    if before[IPV6_FORWARDING] == "1":
        return before
    names = (f"ipv6/conf/{link}/{name}" for link in _links6() for name in ("forwarding", _ACCEPT_RA))
    return before | {name: value for name in names if (value := read_sysctl(name)) != ""}


def is_router6(before: Mapping[str, str]) -> bool:
    """Return whether the host forwards IPv6 packets for others than this service, by the saved and present values."""
    return before.get(IPV6_FORWARDING) == "1" or read_sysctl(IPV6_FORWARDING) == read_sysctl(_FOR_NEW_LINKS6) == "1"


def enable_forwarding6() -> bool:
    """Set `forwarding` to 1, and before it `accept_ra` of links and of the default for new links from 1 to 2.

    Return whether `forwarding` was another value.

    With `forwarding` the kernel removes the default routes that it has learned on links without `accept_ra` 2
    (rt6_purge_dflt_routers of net/ipv6/route.c). `all/accept_ra` has no effect.
    """
    if read_sysctl(IPV6_FORWARDING) == "1":
        return False
    for link in _links6():
        name = f"ipv6/conf/{link}/{_ACCEPT_RA}"
        if read_sysctl(name) == _AS_HOST:
            write_sysctl(name, _AS_ROUTER)
    write_sysctl(IPV6_FORWARDING, "1")
    try:
        write_sysctl(_FOR_NEW_LINKS6, "0")
    except HostError:  # otherwise the host would be taken for a router of others
        write_sysctl(IPV6_FORWARDING, "0")
        raise
    return True


def restore6(before: Mapping[str, str]) -> None:
    """Restore the saved values; forwarding not if the host is a router for others, or it has been set to 0 since.

    `accept_ra` becomes 1 again where it still is 2, also on links that are newer than the saved values.
    """
    if _BRIDGED in before:
        write_sysctl(_BRIDGED, before[_BRIDGED])
    if IPV6_FORWARDING not in before or is_router6(before) or read_sysctl(IPV6_FORWARDING) != "1":
        return
    write_sysctl(IPV6_FORWARDING, before[IPV6_FORWARDING])
    was_host = before.get(f"ipv6/conf/default/{_ACCEPT_RA}") == _AS_HOST
    for link in _links6():
        forwarding, accept_ra = f"ipv6/conf/{link}/forwarding", f"ipv6/conf/{link}/{_ACCEPT_RA}"
        write_sysctl(forwarding, before.get(forwarding, "0"))
        earlier = before.get(accept_ra, _AS_HOST if was_host else "")
        if earlier == _AS_HOST and read_sysctl(accept_ra) == _AS_ROUTER:
            write_sysctl(accept_ra, _AS_HOST)


def receive_untranslated() -> bool:
    """Have packets translated after they were received from a bridge, so that they can be for ::1.

    Return whether that was not so. A no-op without br_netfilter.
    """
    return write_sysctl(_BRIDGED, "0")


def _links6() -> Iterator[str]:
    """Yield the name of each link with IPv6, and `default`."""
    return (link for link in os.listdir(f"{_ROOT}/ipv6/conf") if link != "all")  # noqa: PTH208
