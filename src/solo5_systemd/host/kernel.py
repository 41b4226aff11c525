"""What `solo5ctl doctor` reads of the kernel: settings, modules, KVM, and the packet filters of other programs."""

import errno
import os
import socket
import struct
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from solo5_systemd.base.errors import DependencyError
from solo5_systemd.host import other_filters
from solo5_systemd.host.checks import Kernel
from solo5_systemd.network.kernel_events import AnnouncedPackets
from solo5_systemd.network.lease_files import read_lease_records, read_networks
from solo5_systemd.network.model import LeaseState
from solo5_systemd.network.modules import BRIDGE, MACVLAN
from solo5_systemd.network.modules import TUN as TUN_MODULE
from solo5_systemd.network.namespaces import in_new_namespace
from solo5_systemd.network.netlink import (
    NETLINK_ROUTE,
    NLM_CREATE,
    NetlinkSocket,
    Request,
    attribute,
    check_netfilter,
    nested,
)
from solo5_systemd.network.network_ranges import Overtaken
from solo5_systemd.network.routes import overtaken
from solo5_systemd.settings.network import NetworkSettings
from solo5_systemd.unit.confinement import KVM, TUN

_NEWLINK, _IFINFOMSG, _IFLA_IFNAME, _IFLA_LINKINFO, _KIND = 16, struct.Struct("=BxHiII"), 3, 18, 1
_IPTABLES = {"ip": "iptables", "ip6": "ip6tables"}
_PROGRAMS = "/usr/sbin"


def read_kernel(root: Path = Path("/"), networks: Sequence[NetworkSettings] = ()) -> Kernel:
    """Read the kernel's settings below `root`; firewall chains are those of this network namespace.

    Args:
        networks: those of the settings, whose packets other programs may drop.
    """
    settings = root / "proc/sys"
    dropping, forwarding, forwarding6 = _read_filters(root, networks)
    return Kernel(
        mmap_min_addr=_number(settings / "vm/mmap_min_addr"),
        overcommit=_number(settings / "vm/overcommit_memory"),
        dropping_chains=dropping,
        forwarding_tables=forwarding,
        forwarding_tables6=forwarding6,
        br_netfilter=_number(settings / "net/bridge/bridge-nf-call-iptables") == 1,
        run_free=_free(root / "run"),
        missing_modules=missing_modules() if root == Path("/") else None,
        lacks_log=root == Path("/") and lacks_log(),
        overtaken=_overtaken() if root == Path("/") else (),
    )


def _overtaken() -> Sequence[Overtaken]:
    """Return one guest for each route of another program that takes the packets for guests of a network."""
    records = (each for each in read_lease_records() if each.state is LeaseState.ATTACHED and not each.namespace)
    found = overtaken(read_networks(), (lease for record in records for lease in record.reservation.leases))
    return tuple({(each.inside, each.route): each for each in found}.values())


def kvm_problem() -> str:
    """Return why KVM cannot be opened with the rights of this process; empty if it can.

    `tenders.groups_for` checks the node's permissions for tenders.
    """
    try:
        os.close(os.open(KVM, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return f"{KVM} cannot be opened: {error.strerror}."
    return ""


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def _free(directory: Path) -> int | None:
    try:
        status = os.statvfs(directory)
    except OSError:
        return None
    return status.f_bavail * status.f_frsize


def missing_modules() -> Sequence[str] | None:
    """Return the modules without which a task has no network; None: this process may not try.

    What needs them is made in a new network namespace, which ends with this call, and all in it. The kernel loads those
    that it has.
    """
    try:
        return in_new_namespace(lambda: list(_missing()))
    except OSError:
        return None


def lacks_log() -> bool:
    """Return whether the kernel lacks nfnetlink_log, without which no task sleeps; False: this process may not try."""
    try:
        in_new_namespace(lambda: AnnouncedPackets().close())
    except OSError as error:
        return error.errno == errno.EINVAL
    return False


def _missing() -> Iterator[str]:
    with closing(NetlinkSocket(NETLINK_ROUTE)) as route:
        for kind in (BRIDGE, MACVLAN):  # a macvlan without a lower link is EINVAL
            if route.run([_link(kind)]) == [errno.EOPNOTSUPP]:
                yield kind
    if _lacks_tun():
        yield TUN_MODULE


def _link(kind: str) -> Request:
    info = nested(_IFLA_LINKINFO, attribute(_KIND, kind.encode(), b"\0"))
    name = attribute(_IFLA_IFNAME, kind.encode(), b"\0")
    return (_NEWLINK, NLM_CREATE, _IFINFOMSG.pack(socket.AF_UNSPEC, 0, 0, 0, 0) + name + info)


def _lacks_tun() -> bool:
    try:
        os.close(os.open(TUN, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return error.errno == errno.ENODEV  # a missing node is another fact
    return False


def _read_filters(
    root: Path, networks: Sequence[NetworkSettings]
) -> tuple[Sequence[other_filters.DroppingChain] | None, Sequence[str], Sequence[str]]:
    """Return the values of `Kernel.dropping_chains`, `forwarding_tables` and `forwarding_tables6`."""
    try:
        from nftables import Nftables

        check_netfilter()
        nft = Nftables()
    except (ImportError, OSError, DependencyError):  # of python3-nftables, libnftables.so, the module nfnetlink
        return None, (), ()
    nft.set_json_output(True)
    nft.set_stateless_output(True)
    listing = _listed(nft, {"chains": None})
    if listing is None:
        return None, (), ()
    chains = [item["chain"] for item in listing if "chain" in item]
    # Rules only of tables that can drop a packet: others may have thousands.
    legacy = [each for of in _IPTABLES for each in other_filters.saved_listing(_legacy_rules(root, of), of)]
    found = other_filters.dropping([*_tables(nft, filter(other_filters.may_drop, chains)), *legacy], networks)
    return found, _forwarding(nft, chains, 4), _forwarding(nft, chains, 6)


def _forwarding(nft: Any, chains: Sequence[Mapping[str, Any]], version: int) -> Sequence[str]:
    """Return the tables of programs for which the host forwards, where this service drops packets between others."""
    family = "ip" if version == 4 else "ip6"
    ours = _listed(nft, {"chain": {"family": family, "table": "solo5", "name": "foreign"}}) or ()
    if not other_filters.drops_foreign(ours):
        return ()
    translations = [chain for chain in chains if other_filters.is_translation(chain, version)]
    return other_filters.translating(_tables(nft, translations), version)


def _tables(nft: Any, chains: Iterable[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return the listings of the tables of these chains, one after the other."""
    names = dict.fromkeys((chain["family"], chain["table"]) for chain in chains)
    listings = (_listed(nft, {"table": {"family": family, "name": name}}) or () for family, name in names)
    return [item for listing in listings for item in listing]


def _legacy_rules(root: Path, family: str) -> str:
    """Return the rules of iptables' older kernel interface, which nftables does not list; empty where it is unused."""
    command = (f"{_PROGRAMS}/{_IPTABLES[family]}-legacy-save", "-t", "filter")
    try:
        if b"filter" not in (root / f"proc/net/{family}_tables_names").read_bytes().split():
            return ""
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _listed(nft: Any, what: Mapping[str, object]) -> Sequence[Mapping[str, Any]] | None:
    code, output, _ = nft.json_cmd({"nftables": [{"list": what}]})
    return output.get("nftables", ()) if code == 0 else None
