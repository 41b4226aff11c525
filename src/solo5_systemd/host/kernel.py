"""Kernel settings, KVM, security modules and firewall chains of this host."""

import fcntl
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from solo5_systemd.errors import DependencyError
from solo5_systemd.host.checks import Kernel
from solo5_systemd.host.modules import missing_modules
from solo5_systemd.host.other_filters import (
    LEGACY,
    DroppingChain,
    Filters,
    drops_foreign,
    has_extensions,
    is_filter,
    is_translation,
    saved_listing,
    translating,
)
from solo5_systemd.network.lease_files import STATE, read_lease_records, read_networks
from solo5_systemd.network.model import LeaseState
from solo5_systemd.network.overtaken import Overtaken
from solo5_systemd.network.raw_netlink import check_netfilter
from solo5_systemd.network.routes import overtaken
from solo5_systemd.settings.model import NetworkSettings
from solo5_systemd.unit.confinement import KVM

_KVM_GET_API_VERSION = 0xAE00  # linux/kvm.h
_KVM_API = 12
_IPTABLES = {"ip": "iptables", "ip6": "ip6tables"}
_PROGRAMS = "/usr/sbin"
_REJECTED = 0x0200  # RTF_REJECT of linux/route.h: an unreachable route


def read_kernel(root: Path = Path("/"), networks: Sequence[NetworkSettings] = ()) -> Kernel:
    """Read the kernel's settings below `root`; firewall chains are those of this network namespace.

    Args:
        root: the root directory of files.
        networks: those of the settings, whose packets other programs may drop.
    """
    settings = root / "proc/sys"
    dropping, forwarding, forwarding6 = _filters(root, networks)
    return Kernel(
        mmap_min_addr=_number(settings / "vm/mmap_min_addr"),
        overcommit=_number(settings / "vm/overcommit_memory"),
        dropping_chains=dropping,
        forwarding_tables=forwarding,
        forwarding_tables6=forwarding6,
        br_netfilter=_number(settings / "net/bridge/bridge-nf-call-iptables") == 1,
        run_free=_free(root / "run"),
        missing_modules=missing_modules() if root == Path("/") else None,
        overtaken=_overtaken(root / STATE.relative_to("/")),
    )


def _overtaken(state: Path) -> Sequence[Overtaken]:
    """Return one guest for each route of another program that takes the packets for guests of a network."""
    records = (each for each in read_lease_records(state) if each.state is LeaseState.ATTACHED and not each.namespace)
    found = overtaken(read_networks(state), (lease for record in records for lease in record.reservation.leases))
    return tuple({(each.inside, each.route): each for each in found}.values())


def numa_nodes(root: Path = Path("/")) -> Mapping[int, str]:
    """Return the processors of each NUMA node with processors, such as `0-3,8-11`."""
    files = (root / "sys/devices/system/node").glob("node*/cpulist")
    found = {int(file.parent.name.removeprefix("node")): _text(file).strip() for file in files}
    return {number: processors for number, processors in sorted(found.items()) if processors}


def kvm_problem(node: str = KVM) -> str:
    """Return why KVM is unusable with the rights of this process; empty if it is usable.

    `devices.groups_for` checks the node's permissions for tenders.
    """
    try:
        descriptor = os.open(node, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        return f"{node} cannot be opened: {error.strerror}."
    try:
        version = fcntl.ioctl(descriptor, _KVM_GET_API_VERSION)
    except OSError as error:
        return f"{node} is not a KVM device: {error.strerror}."
    finally:
        os.close(descriptor)
    return "" if version == _KVM_API else f"{node} has KVM API version {version}: expected {_KVM_API}."


def enabled_security_modules(root: Path = Path("/")) -> tuple[str, ...]:
    """Return those of `apparmor` and `selinux` that are enabled, by the files that systemd checks."""
    apparmor = _text(root / "sys/module/apparmor/parameters/enabled") == "Y"
    selinux = (root / "sys/fs/selinux/status").exists()
    return (*(("apparmor",) if apparmor else ()), *(("selinux",) if selinux else ()))


def _filters(
    root: Path, networks: Sequence[NetworkSettings]
) -> tuple[Sequence[DroppingChain] | None, Sequence[str], Sequence[str]]:
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
    # Whole tables only where one can drop a packet: others may have thousands of rules.
    legacy = [each for of in _IPTABLES for each in saved_listing(_legacy_rules(root, of), LEGACY, of)]
    items = [*_filter_tables(nft, chains), *legacy]
    dropping = Filters(items).dropping(networks, _uplink(root), _uplink6(root))
    return dropping, _forwarding(nft, chains, 4), _forwarding(nft, chains, 6)


def _forwarding(nft: Any, chains: Sequence[Mapping[str, Any]], version: int) -> Sequence[str]:
    """Return the tables of programs for which the host forwards, where this service drops packets between others."""
    family = "ip" if version == 4 else "ip6"
    ours = _listed(nft, {"chain": {"family": family, "table": "solo5", "name": "foreign"}}) or ()
    if not drops_foreign(ours):
        return ()
    return translating(_tables(nft, [chain for chain in chains if is_translation(chain, version)]), version)


def _tables(nft: Any, chains: Iterable[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return the listings of the tables of these chains, one after the other."""
    names = dict.fromkeys((chain["family"], chain["table"]) for chain in chains)
    listings = (_listed(nft, {"table": {"family": family, "name": name}}) or () for family, name in names)
    return [item for listing in listings for item in listing]


def _filter_tables(nft: Any, chains: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return the tables that can drop packets; those of iptables by iptables-save, where they use extensions."""
    listing = list(_tables(nft, filter(is_filter, chains)))
    for family, program in _IPTABLES.items():
        of_iptables = [item for item in listing if _is_of_iptables(item, family)]
        saved = _saved(f"{program}-nft-save") if has_extensions(of_iptables) else ""
        if saved:
            listing = [item for item in listing if not _is_of_iptables(item, family)]
            listing += saved_listing(saved, "filter", family)
    return listing


def _is_of_iptables(item: Mapping[str, Any], family: str) -> bool:
    return any((body.get("family"), body.get("table")) == (family, "filter") for body in item.values())


def _saved(program: str) -> str:
    """Return the table filter as an iptables-save prints it; empty where it fails."""
    command = (f"{_PROGRAMS}/{program}", "-t", "filter")
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _legacy_rules(root: Path, family: str) -> str:
    """Return the rules of iptables' older kernel interface, which nftables does not list; empty where it is unused."""
    if "filter" not in _text(root / f"proc/net/{family}_tables_names").split():
        return ""
    return _saved(f"{_IPTABLES[family]}-legacy-save")


def _listed(nft: Any, what: Mapping[str, object]) -> Sequence[Mapping[str, Any]] | None:
    code, output, _ = nft.json_cmd({"nftables": [{"list": what}]})
    return output.get("nftables", ()) if code == 0 else None


def _uplink(root: Path) -> str:
    """Return the link of the IPv4 default route, by /proc/net/route; empty without one."""
    routes = (line.split() for line in _text(root / "proc/net/route").splitlines())
    return next((route[0] for route in routes if route[1:2] == ["00000000"]), "")


def _uplink6(root: Path) -> str:
    """Return the link of the IPv6 default route, by /proc/net/ipv6_route; empty without one."""
    routes = (line.split() for line in _text(root / "proc/net/ipv6_route").splitlines())
    default = ["0" * 32, "00"]
    return next((r[9] for r in routes if r[:2] == default and len(r) == 10 and not int(r[8], 16) & _REJECTED), "")


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
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
