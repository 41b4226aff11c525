"""The facts of `solo5ctl doctor`: requirements on the host, by verdict, with advice.

`Host` is the input, `facts` the judgement. The minimum is that of README: systemd 252 and cgroup v2.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from solo5_systemd.base.dependencies import Dependency
from solo5_systemd.base.names import Target, journald_of
from solo5_systemd.host.other_firewalls import DroppingChain
from solo5_systemd.image.manifest import ABI_VERSION
from solo5_systemd.network.modules import NF_TABLES, NFNETLINK_LOG
from solo5_systemd.network.modules import remedy as remedy_of_modules
from solo5_systemd.network.network_ranges import Overtaken
from solo5_systemd.settings.network_policy import Join, Network
from solo5_systemd.task.properties import missing_controllers
from solo5_systemd.unit.tender import Tender

SYSTEMD = 252
"""The minimum version of systemd: Debian 12's."""

RUN_FREE = 4 << 20
"""Minimum of free bytes in /run: the lease records of some thousand tasks."""

STORE_FREE = 64 << 20
"""Minimum of free bytes of the image store."""

AS_ROUTER = "echo net.ipv4.ip_forward=1 >/etc/sysctl.d/50-ip-forward.conf && systemctl restart systemd-sysctl"
AS_ROUTER6 = AS_ROUTER.replace("ipv4.ip_forward", "ipv6.conf.all.forwarding").replace("ip-forward", "ipv6-forward")
"""The commands after which no packet between other links is dropped, of IPv4 and of IPv6."""


class Verdict(StrEnum):
    """OK, usable with limits, or no task can run."""

    OK = "ok"
    LIMITED = "limited"
    BROKEN = "broken"


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """What the kernel has and lacks, and firewall chains of other programs; None: cannot be read.

    Attributes:
        dropping_chains: chains of other programs that drop packets of networks, such as Docker's; None: nftables is
            unavailable.
        forwarding_tables: tables of other programs that translate what the host forwards for them, while this service
            drops packets between other links.
        missing_modules: the modules without which a task has no network, besides nf_tables; None: only root can check.
        lacks_log: it has no nfnetlink_log, by which packets wake tasks.
    """

    dropping_chains: Sequence[DroppingChain] | None = None
    forwarding_tables: Sequence[str] = ()
    forwarding_tables6: Sequence[str] = ()
    run_free: int | None = None
    missing_modules: Sequence[str] | None = None
    lacks_log: bool = False


@dataclass(frozen=True, kw_only=True)
class Host:
    """The state of this host, as `probe` reads it.

    Attributes:
        systemd: the major version; None: `systemctl --version` failed.
        controllers: the controllers of the unified hierarchy; None: cgroup v1.
        files: the package's files outside of the Python modules, and whether each exists.
        settings: the error in /etc/solo5; empty: valid.
        unusable: why a tender that there is cannot be executed, by its target.
        devices: device nodes, each with the problem of a tender with it; empty: usable.
        store: the directory of the image store, its free bytes, and the reserve.
        drop_ins: the problem of a drop-in for all services; empty: there is none.
        log_namespace: the journal namespace of consoles; empty: the host's journal.
        namespace_problem: the problem of that namespace; empty: usable.
        console_problem: why that journal stores no consoles; empty: it does, or only root can see it.
    """

    systemd: int | None
    booted: bool
    controllers: Sequence[str] | None
    missing: Sequence[Dependency]
    files: Mapping[str, bool]
    user: bool
    settings: str
    tenders: Sequence[Tender]
    tender_paths: Sequence[str]
    devices: Mapping[str, str]
    store: tuple[str, int, int]
    persistent_journal: bool
    unusable: Mapping[Target, str] = field(default_factory=dict)
    launcher: bool = True
    drop_ins: str = ""
    log_namespace: str = ""
    namespace_problem: str = ""
    console_problem: str = ""
    networks: Sequence[Network] = ()
    kernel: Kernel = field(default_factory=Kernel)


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One line of `solo5ctl doctor`; `advice` is empty for verdict OK."""

    name: str
    value: str
    verdict: Verdict = Verdict.OK
    advice: str = ""


def _broken(name: str, value: str, advice: str) -> Fact:
    return Fact(name=name, value=value, verdict=Verdict.BROKEN, advice=advice)


def limited(name: str, value: str, advice: str) -> Fact:
    """Return a fact of a host that is usable with limits."""
    return Fact(name=name, value=value, verdict=Verdict.LIMITED, advice=advice)


def _either(name: str, good: str, wrong: str, advice: str, verdict: Verdict = Verdict.BROKEN) -> Fact:
    """Return the fact with the value `good`, or else what is wrong, if that is not empty."""
    return Fact(name=name, value=wrong, verdict=verdict, advice=advice) if wrong else Fact(name=name, value=good)


def facts(host: Host) -> tuple[Fact, ...]:
    """Return all facts of a host, with verdicts."""
    return (
        *_installation(host),
        *_tenders(host),
        *_devices(host),
        _store(host),
        _journal(host),
        _networks(host),
        *_kernel(host.kernel),
    )


def _installation(host: Host) -> Iterator[Fact]:
    """Yield the facts about dependencies, systemd, and what the package and the operator have installed."""
    for each in host.missing:
        yield _broken(f"{each.kind} {each.name}", "missing", each.advice)
    if not host.missing:
        yield Fact(name="dependencies", value="complete")
    yield _systemd(host)
    yield cgroups(host)
    lacking = [name for name, found in host.files.items() if not found]
    advice = f"Install the Debian package; pip alone cannot install {', '.join(lacking)}."
    yield _either("units and policy", "installed", f"{len(lacking)} missing" if lacking else "", advice)
    advice = "Create it: systemd-sysusers (needs /usr/lib/sysusers.d/solo5-systemd.conf)"
    yield _either("user solo5", "exists", "" if host.user else "missing", advice)
    yield _either("/etc/solo5", "valid", host.settings, "Correct it: see solo5.toml(5).")
    if host.drop_ins:
        yield _broken("drop-ins", "change the units of tasks", host.drop_ins)


def _systemd(host: Host) -> Fact:
    value = "not found" if host.systemd is None else str(host.systemd)
    if not host.booted:
        return _broken("systemd", f"{value}, not PID 1", "Boot this machine with systemd: tasks are its units.")
    if host.systemd is None or host.systemd < SYSTEMD:
        return _broken("systemd", value, f"Install systemd {SYSTEMD} or newer.")
    return Fact(name="systemd", value=value)


def cgroups(host: Host) -> Fact:
    """Return the fact about controllers: on a legacy or hybrid hierarchy cgroup v1 has them, and limits do not hold."""
    lacking = missing_controllers(host.controllers)
    if not lacking:
        return Fact(name="cgroups", value="version 2")
    value = "version 1" if host.controllers is None else f"version 2 without {', '.join(lacking)}"
    advice = "Limits of tasks do not hold: boot with systemd.unified_cgroup_hierarchy=1 and without cgroup_disable=."
    return limited("cgroups", value, advice)


def _tenders(host: Host) -> Iterator[Fact]:
    usable = [tender for tender in host.tenders if tender.abi_version == ABI_VERSION]
    for target in Target:
        name = f"solo5-{target}"
        if found := next((tender for tender in usable if tender.target is target), None):
            value = f"{found.path}, version {found.version}"
            if found.loads_because:
                value += f"; its tasks can read all of {', '.join(found.loads)}: {found.loads_because}"
                advice = "Use a tender as Solo5 builds it, linked statically or with libraries in the system's "
                yield limited(name, value, f"{advice}directories.")
            else:
                yield Fact(name=name, value=value)
            continue
        other = next((tender for tender in host.tenders if tender.target is target), None)
        value = f"{other.path} has ABI {other.abi_version}" if other else "not found"
        advice = (
            f"Install Solo5 (opam install solo5), and put {name} of ABI {ABI_VERSION} into one of "
            f"{', '.join(host.tender_paths)}."
        )
        if why := host.unusable.get(target):
            value, advice = "cannot be used", why
        yield limited(name, value, advice) if usable else _broken(name, value, advice)
    missing = "not installed: a tender that its guest has taken over has all requests (ioctl) of its disks and taps"
    advice = "Install solo5-confine (Debian). Tasks that run get its filter with their next start."
    yield _either("solo5-confine", "installed", "" if host.launcher else missing, advice, Verdict.LIMITED)


def _devices(host: Host) -> Iterator[Fact]:
    for node, problem in host.devices.items():
        yield _either(node, "usable", "cannot be used" if problem else "", problem, Verdict.LIMITED)


def _store(host: Host) -> Fact:
    name, (directory, free, reserve) = "image store", host.store
    value = f"{directory}, {free >> 20} MiB free"
    if free < STORE_FREE:
        return _broken(name, value, "Free some space, or call solo5ctl gc.")
    if free < reserve:
        advice = (
            f"New images, private copies and disks of jobs are refused, since {reserve >> 20} MiB stay free. Free some "
            "space; the operator sets limits.reserve_mb in solo5.toml(5)."
        )
        return limited(name, value, advice)
    return Fact(name=name, value=value)


def _journal(host: Host) -> Fact:
    if host.namespace_problem:
        unit = journald_of(host.log_namespace)
        advice = f"See: systemctl status {unit}; or leave out log_namespace, see solo5.toml(5)."
        return _broken("journal", f"no namespace {host.log_namespace}: {host.namespace_problem}", advice)
    if host.console_problem:
        return limited("journal", "no consoles", host.console_problem)
    kept = "kept over a reboot" if host.persistent_journal else "lost with a reboot"
    where = f"; consoles in namespace {host.log_namespace}" if host.log_namespace else ""
    return Fact(name="journal", value=f"{kept}{where}")


def _networks(host: Host) -> Fact:
    opened = {network.name: ways for network in host.networks if (ways := _opened(network))}
    joined = [_joined(network, network.join) for network in host.networks if network.join]
    shown = "; ".join([*(f"{name} opens {', '.join(ways)}" for name, ways in opened.items()), *joined])
    return Fact(name="networks", value=shown or "closed except published ports and outgoing connections")


def _joined(network: Network, join: Join) -> str:
    """Return a phrase about a network on a joined bridge, whose firewall and routers decide what reaches it."""
    vlan = f" with VLAN {join.vlan}" if join.vlan else ""
    leased = f"addresses from {join.pool}" if join.pool else f"requested addresses of {network.ipv4}"
    return f"{network.name} joins {network.bridge}{vlan}, {leased if network.ipv4 else 'addresses by DHCP'}"


def _opened(network: Network) -> list[str]:
    policy = network.policy
    return [
        *([f"{', '.join(map(str, policy.host))} of this host"] if policy.host else ()),
        *(["the metadata service"] if policy.metadata else ()),
        *(f"network {name}" for name in policy.reach),
        *(["unpublished ports"] if policy.routed else ()),
        *(["fragments"] if policy.fragments else ()),
        *(["DHCP"] if policy.dhcp else ()),
        *(["router advertisements"] if network.ra else ()),
    ]


def _kernel(kernel: Kernel) -> Iterator[Fact]:
    yield _firewall(kernel)
    if kernel.missing_modules:
        yield modules(kernel)
    if kernel.lacks_log:
        yield limited("sleep", "nfnetlink_log missing", f"No task sleeps: {remedy_of_modules(NFNETLINK_LOG)}")
    for name, tables, command in (
        ("forwarding", kernel.forwarding_tables, AS_ROUTER),
        ("forwarding of IPv6", kernel.forwarding_tables6, AS_ROUTER6),
    ):
        if tables:
            value = f"dropped between other links, for which there is table {', '.join(tables)}"
            yield limited(name, value, f"Have this host forward for other programs, too: {command}")
    if kernel.run_free is not None and kernel.run_free < RUN_FREE:
        yield _broken("/run", f"{kernel.run_free >> 10} KiB free", "Free some space: leases are kept there.")


def routes(guests: Iterable[Overtaken]) -> Iterator[Fact]:
    """Yield a fact for each of these guests, whose packets another program's route takes."""
    for each in guests:
        value = f"{each.route} takes packets for guests of {each.inside}"
        yield limited("routes", value, f"While the network is in use, this gives them back: {each.remedy}")


def modules(kernel: Kernel) -> Fact:
    """Return the fact about missing modules of the kernel."""
    missing = kernel.missing_modules or ()
    return limited(
        "kernel modules", f"{', '.join(missing)} missing", f"Tasks get no network: {remedy_of_modules(*missing)}"
    )


def _firewall(kernel: Kernel) -> Fact:
    if kernel.dropping_chains is None:
        advice = "Networks need nftables; only root can check it."
        if kernel.missing_modules is not None:
            advice = f"Tasks get no network: {remedy_of_modules(NF_TABLES)}"
        return limited("nftables", "unavailable", advice)
    if problem := filter_problem(kernel):
        advice = f"Tasks reach nothing beyond this host, until these are accepted: {filter_remedy(kernel)}"
        return limited("nftables", problem, advice)
    return Fact(name="nftables", value="usable")


def filter_problem(kernel: Kernel) -> str:
    """Return which chains drop packets of which bridges; empty without one."""
    chains = kernel.dropping_chains or ()
    return "; ".join(f"{each.name} drops packets of {', '.join(each.bridges)}" for each in chains)


def filter_remedy(kernel: Kernel) -> str:
    """Return the commands that open these chains, as one line for a shell."""
    commands = (command for each in kernel.dropping_chains or () for command in each.remedy)
    return " && ".join(dict.fromkeys(commands))  # one of ufw or firewalld is for the chains of both families
