"""Kernel settings, KVM, security modules and firewall chains of this host."""

import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from solo5_systemd.base.errors import DependencyError
from solo5_systemd.host.checks import Kernel
from solo5_systemd.host.modules import lacks_log, missing_modules
from solo5_systemd.host.other_filters import (
    DroppingChain,
    dropping,
    drops_foreign,
    is_translation,
    may_drop,
    saved_listing,
    translating,
)
from solo5_systemd.network.lease_files import STATE, read_lease_records, read_networks
from solo5_systemd.network.model import LeaseState
from solo5_systemd.network.overtaken import Overtaken
from solo5_systemd.network.raw_netlink import check_netfilter
from solo5_systemd.network.routes import overtaken
from solo5_systemd.settings.network import NetworkSettings
from solo5_systemd.unit.confinement import KVM

_IPTABLES = {"ip": "iptables", "ip6": "ip6tables"}
_PROGRAMS = "/usr/sbin"


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
        lacks_log=root == Path("/") and lacks_log(),
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
    """Return why KVM cannot be opened with the rights of this process; empty if it can.

    `tenders.groups_for` checks the node's permissions for tenders.
    """
    try:
        os.close(os.open(node, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return f"{node} cannot be opened: {error.strerror}."
    return ""


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
    # Rules only of tables that can drop a packet: others may have thousands.
    legacy = [each for of in _IPTABLES for each in saved_listing(_legacy_rules(root, of), of)]
    found = dropping([*_tables(nft, filter(may_drop, chains)), *legacy], networks)
    return found, _forwarding(nft, chains, 4), _forwarding(nft, chains, 6)


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


def _legacy_rules(root: Path, family: str) -> str:
    """Return the rules of iptables' older kernel interface, which nftables does not list; empty where it is unused."""
    if "filter" not in _text(root / f"proc/net/{family}_tables_names").split():
        return ""
    command = (f"{_PROGRAMS}/{_IPTABLES[family]}-legacy-save", "-t", "filter")
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _listed(nft: Any, what: Mapping[str, object]) -> Sequence[Mapping[str, Any]] | None:
    code, output, _ = nft.json_cmd({"nftables": [{"list": what}]})
    return output.get("nftables", ()) if code == 0 else None


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
