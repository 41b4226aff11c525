"""Kernel settings, KVM and security modules of this host."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from solo5_systemd.base import procfs
from solo5_systemd.host.checks import Kernel
from solo5_systemd.host.filter_listing import read_filters
from solo5_systemd.host.modules import lacks_log, missing_modules
from solo5_systemd.network.lease_files import read_lease_records, read_networks
from solo5_systemd.network.model import LeaseState
from solo5_systemd.network.overtaken import Overtaken
from solo5_systemd.network.routes import overtaken
from solo5_systemd.settings.network import NetworkSettings
from solo5_systemd.unit.confinement import KVM


def read_kernel(root: Path = Path("/"), networks: Sequence[NetworkSettings] = ()) -> Kernel:
    """Read the kernel's settings below `root`; firewall chains are those of this network namespace.

    Args:
        networks: those of the settings, whose packets other programs may drop.
    """
    settings = root / "proc/sys"
    dropping, forwarding, forwarding6 = read_filters(root, networks)
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


def numa_nodes() -> Mapping[int, str]:
    """Return the processors of each NUMA node with processors, such as `0-3,8-11`."""
    files = (procfs.SYS / "devices/system/node").glob("node*/cpulist")
    found = {int(file.parent.name.removeprefix("node")): _text(file).strip() for file in files}
    return {number: processors for number, processors in sorted(found.items()) if processors}


def kvm_problem() -> str:
    """Return why KVM cannot be opened with the rights of this process; empty if it can.

    `tenders.groups_for` checks the node's permissions for tenders.
    """
    try:
        os.close(os.open(KVM, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return f"{KVM} cannot be opened: {error.strerror}."
    return ""


def enabled_security_modules() -> tuple[str, ...]:
    """Return those of `apparmor` and `selinux` that are enabled, by the files that systemd checks."""
    apparmor = _text(procfs.SYS / "module/apparmor/parameters/enabled") == "Y"
    selinux = (procfs.SYS / "fs/selinux/status").exists()
    return (*(("apparmor",) if apparmor else ()), *(("selinux",) if selinux else ()))


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
