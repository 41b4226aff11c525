"""Kernel settings, KVM, security modules and firewall chains of this host."""

import fcntl
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from solo5_systemd.host.checks import Kernel
from solo5_systemd.unit.confinement import KVM

_KVM_GET_API_VERSION = 0xAE00  # linux/kvm.h
_KVM_API = 12


def read_kernel(root: Path = Path("/")) -> Kernel:
    """Read the kernel's settings below `root`; firewall chains are those of this network namespace."""
    settings = root / "proc/sys"
    return Kernel(
        mmap_min_addr=_number(settings / "vm/mmap_min_addr"),
        overcommit=_number(settings / "vm/overcommit_memory"),
        dropping_chains=_dropping_chains(),
        br_netfilter=_number(settings / "net/bridge/bridge-nf-call-iptables") == 1,
        run_free=_free(root / "run"),
    )


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


def find_dropping_chains(listing: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the IPv4 chains at the forward hook with policy drop, from libnftables' JSON, as `FAMILY TABLE CHAIN`."""
    chains = (item["chain"] for item in listing if "chain" in item)
    return tuple(
        f"{chain['family']} {chain['table']} {chain['name']}"
        for chain in chains
        if chain.get("hook") == "forward" and chain.get("policy") == "drop" and chain["family"] in ("ip", "inet")
    )


def _dropping_chains() -> tuple[str, ...] | None:
    try:
        from nftables import Nftables

        nft = Nftables()
    except (ImportError, OSError):  # python3-nftables or libnftables.so is not installed
        return None
    nft.set_json_output(True)
    code, output, _ = nft.json_cmd({"nftables": [{"list": {"chains": None}}]})
    return find_dropping_chains(output.get("nftables", ())) if code == 0 else None


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
