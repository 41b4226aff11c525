"""What this machine must have, and what to do where it lacks it.

`Host` is what was found, `facts` what it means; the floors are those of README: systemd 252 and cgroup v2.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from solo5_systemd.image.manifest import SUPPORTED_ABI, Target
from solo5_systemd.names import journald_of
from solo5_systemd.settings import NetworkPolicy, NetworkSettings
from solo5_systemd.unit.limits import missing
from solo5_systemd.unit.tender import Tender

if TYPE_CHECKING:
    from solo5_systemd.dependencies import Dependency

SYSTEMD = 252
"""The oldest systemd: Debian 12's."""

SPT_BASE = 0x10000
"""Where spt maps guest memory, in its own address space."""

NEVER_OVERCOMMIT = 2
"""proc(5), /proc/sys/vm/overcommit_memory."""

RUN_FREE = 4 << 20
"""Bytes: room for the leases of some thousand tasks."""


class Verdict(StrEnum):
    """Good, usable within limits, or in the way of every task."""

    OK = "ok"
    LIMITED = "limited"
    BROKEN = "broken"


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """Kernel settings and rules of others that a task meets; None: cannot be read.

    Attributes:
        mmap_min_addr: the lowest address that a process may map.
        overcommit: vm.overcommit_memory.
        drops: chains at the forward hook that drop what no rule of theirs accepts, such as Docker's; None: nftables
            cannot be asked.
        bridged: bridged frames pass the IP forward hook, too (br_netfilter).
        run_free: bytes free in /run.
    """

    mmap_min_addr: int | None = None
    overcommit: int | None = None
    drops: Sequence[str] | None = None
    bridged: bool = False
    run_free: int | None = None


@dataclass(frozen=True, kw_only=True)
class Host:
    """What was found on this machine.

    Attributes:
        systemd: its version's number; None: `systemctl` did not tell.
        booted: PID 1 is systemd.
        controllers: those of the unified hierarchy; None: cgroup v1.
        missing: what the package depends on and is not there.
        files: each file of ours beside the Python modules, and whether it is there.
        user: the system user of the tenders exists.
        settings: what is wrong in /etc/solo5; empty: nothing.
        tenders: those in the search path.
        tender_paths: the search path.
        devices: each device node, and why a tender cannot use it; empty: it can.
        virtualization: the processor says that it can run virtual machines (svm or vmx).
        store: the image store's directory and free bytes there; None: it cannot be looked at.
        persistent_journal: the journal outlives a reboot.
        log_namespace: the journal namespace of consoles; empty: the host's journal.
        no_namespace: why that namespace cannot be used; empty: it can.
        networks: those of /etc/solo5.
        kernel: its settings.
    """

    systemd: int | None
    booted: bool
    controllers: Sequence[str] | None
    missing: "Sequence[Dependency]"
    files: Mapping[str, bool]
    user: bool
    settings: str
    tenders: Sequence[Tender]
    tender_paths: Sequence[str]
    devices: Mapping[str, str]
    virtualization: bool
    store: tuple[str, int] | None
    persistent_journal: bool
    log_namespace: str = ""
    no_namespace: str = ""
    networks: Sequence[NetworkSettings] = ()
    kernel: Kernel = field(default_factory=Kernel)


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One line of `solo5ctl doctor`; `advice` is empty where nothing is to be done."""

    name: str
    value: str
    verdict: Verdict = Verdict.OK
    advice: str = ""


def facts(host: Host) -> tuple[Fact, ...]:
    """What was found, judged."""
    return (
        *_dependencies(host),
        _systemd(host),
        cgroups(host),
        _files(host),
        _user(host),
        _settings(host),
        *_tenders(host),
        *_devices(host),
        _store(host),
        _journal(host),
        _networks(host),
        *_kernel(host.kernel),
    )


def _systemd(host: Host) -> Fact:
    value = "not found" if host.systemd is None else str(host.systemd)
    if not host.booted:
        return _broken("systemd", f"{value}, not PID 1", "Boot this machine with systemd: tasks are its units.")
    if host.systemd is None or host.systemd < SYSTEMD:
        return _broken("systemd", value, f"Install systemd {SYSTEMD} or newer.")
    return Fact(name="systemd", value=value)


def cgroups(host: Host) -> Fact:
    """Whether the limits of tasks hold: in a legacy or hybrid hierarchy the controllers belong to cgroup v1."""
    lacking = missing(host.controllers)
    if not lacking:
        return Fact(name="cgroups", value="version 2")
    return Fact(
        name="cgroups",
        value="version 1" if host.controllers is None else f"version 2 without {', '.join(lacking)}",
        verdict=Verdict.LIMITED,
        advice="Limits of tasks do not hold: boot with systemd.unified_cgroup_hierarchy=1 and without cgroup_disable=.",
    )


def _dependencies(host: Host) -> Iterator[Fact]:
    """A fact for each that is missing, or one for all."""
    for each in host.missing:
        yield _broken(f"{each.kind} {each.name}", "missing", each.advice)
    if not host.missing:
        yield Fact(name="dependencies", value="complete")


def _files(host: Host) -> Fact:
    lacking = [name for name, found in host.files.items() if not found]
    if lacking:
        advice = f"Install the Debian package; pip alone cannot install {', '.join(lacking)}."
        return _broken("units and policy", f"{len(lacking)} missing", advice)
    return Fact(name="units and policy", value="installed")


def _user(host: Host) -> Fact:
    if host.user:
        return Fact(name="user solo5", value="there")
    return _broken(
        "user solo5", "missing", "Create it: systemd-sysusers (needs /usr/lib/sysusers.d/solo5-systemd.conf)"
    )


def _settings(host: Host) -> Fact:
    if host.settings:
        return _broken("/etc/solo5", host.settings, "Correct it: see solo5.toml(5).")
    return Fact(name="/etc/solo5", value="understood")


def _tenders(host: Host) -> Iterator[Fact]:
    usable = [tender for tender in host.tenders if tender.abi_version == SUPPORTED_ABI[tender.target]]
    for target in Target:
        name = f"solo5-{target}"
        found = next((tender for tender in usable if tender.target is target), None)
        if found:
            yield _usable(name, found)
            continue
        other = next((tender for tender in host.tenders if tender.target is target), None)
        value = f"{other.path} speaks ABI {other.abi_version}" if other else "not found"
        yield Fact(
            name=name,
            value=value,
            verdict=Verdict.LIMITED if usable else Verdict.BROKEN,
            advice=f"Install Solo5 (opam install solo5), and put {name} of ABI {SUPPORTED_ABI[target]} into one of "
            f"{', '.join(host.tender_paths)}.",
        )


def _usable(name: str, tender: Tender) -> Fact:
    value = f"{tender.path}, version {tender.version}"
    if not tender.loads_because:
        return Fact(name=name, value=value)
    return Fact(
        name=name,
        value=f"{value}; its tasks see all of {', '.join(tender.loads)}: {tender.loads_because}",
        verdict=Verdict.LIMITED,
        advice="Use a tender as Solo5 builds it, linked statically or with libraries in the system's directories.",
    )


def _devices(host: Host) -> Iterator[Fact]:
    for node, problem in host.devices.items():
        if problem:
            yield Fact(name=node, value="cannot be used", verdict=Verdict.LIMITED, advice=problem)
        elif node == "/dev/kvm" and not host.virtualization:
            yield Fact(
                name=node,
                value="without svm or vmx",
                verdict=Verdict.LIMITED,
                advice="Emulated KVM: hvt guests that use floating point may fail. Prefer spt images.",
            )
        else:
            yield Fact(name=node, value="usable")


def _store(host: Host) -> Fact:
    if host.store is None:
        return Fact(
            name="image store",
            value="not there yet",
            verdict=Verdict.LIMITED,
            advice="The first start makes it; systemd-tmpfiles --create does so now.",
        )
    directory, free = host.store
    mib = free >> 20
    if mib < 64:
        return _broken("image store", f"{directory}, {mib} MiB free", "Free some space, or call solo5ctl gc.")
    return Fact(name="image store", value=f"{directory}, {mib} MiB free")


def _journal(host: Host) -> Fact:
    if host.no_namespace:
        return _broken(
            "journal",
            f"no namespace {host.log_namespace}: {host.no_namespace}",
            f"See: systemctl status {journald_of(host.log_namespace)}; or leave out log_namespace, see solo5.toml(5).",
        )
    kept = "kept over a reboot" if host.persistent_journal else "lost with a reboot"
    where = f"; consoles in namespace {host.log_namespace}" if host.log_namespace else ""
    return Fact(name="journal", value=f"{kept}{where}")


def _networks(host: Host) -> Fact:
    opened = {network.name: ways for network in host.networks if (ways := _opened(network.policy))}
    shown = "; ".join(f"{name} opens {', '.join(ways)}" for name, ways in opened.items())
    return Fact(name="networks", value=shown or "closed but for published ports and the guests' way out")


def _opened(policy: NetworkPolicy) -> list[str]:
    return [
        *([f"{', '.join(map(str, policy.host))} of this host"] if policy.host else ()),
        *(["the metadata service"] if policy.metadata else ()),
        *(f"network {name}" for name in policy.reach),
        *(["unpublished ports"] if policy.routed else ()),
        *(["fragments"] if policy.fragments else ()),
    ]


def _kernel(kernel: Kernel) -> Iterator[Fact]:
    yield _setting(
        "mmap_min_addr",
        kernel.mmap_min_addr,
        f"spt guests cannot be mapped: sysctl vm.mmap_min_addr={SPT_BASE}",
        bad=kernel.mmap_min_addr is not None and kernel.mmap_min_addr > SPT_BASE,
    )
    yield _setting(
        "overcommit",
        kernel.overcommit,
        "A guest's whole memory counts from its start, and a large one may be refused.",
        bad=kernel.overcommit == NEVER_OVERCOMMIT,
    )
    yield _firewall(kernel)
    if kernel.run_free is not None and kernel.run_free < RUN_FREE:
        yield _broken("/run", f"{kernel.run_free >> 10} KiB free", "Free some space: leases are kept there.")


def _setting(name: str, value: int | None, advice: str, *, bad: bool) -> Fact:
    if value is None:
        return Fact(name=name, value="unknown", verdict=Verdict.LIMITED, advice="It cannot be read.")
    if bad:
        return Fact(name=name, value=str(value), verdict=Verdict.LIMITED, advice=advice)
    return Fact(name=name, value=str(value))


def _firewall(kernel: Kernel) -> Fact:
    if kernel.drops is None:
        advice = "Networks need it, and root to look at it."
        return Fact(name="nftables", value="cannot be asked", verdict=Verdict.LIMITED, advice=advice)
    if not kernel.drops:
        return Fact(name="nftables", value="usable")
    whose = ", ".join(kernel.drops)
    among = " or among themselves" if kernel.bridged else ""
    return Fact(
        name="nftables",
        value=f"forwarding is dropped by {whose}",
        verdict=Verdict.LIMITED,
        advice=f"Tasks reach nothing beyond this host{among} unless a rule there accepts their bridges, for both "
        "iifname and oifname (with Docker: in the chain DOCKER-USER).",
    )


def _broken(name: str, value: str, advice: str) -> Fact:
    return Fact(name=name, value=value, verdict=Verdict.BROKEN, advice=advice)
