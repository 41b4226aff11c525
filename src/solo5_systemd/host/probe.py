"""The probe behind `solo5ctl doctor`: reads the state of this host and its kernel, and changes nothing."""

import asyncio
import errno
import os
import pwd
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from ctypes import CDLL
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from solo5_systemd.base.dependencies import DEPENDENCIES, DHCP_SERVER, Dependency, Kind
from solo5_systemd.base.errors import DependencyError, Solo5Error
from solo5_systemd.base.names import TASK_PREFIX, Target, journald_of
from solo5_systemd.host import other_firewalls
from solo5_systemd.host.checks import Host, Kernel
from solo5_systemd.host.drop_ins import check_drop_ins
from solo5_systemd.host.tenders import TenderPath, groups_for
from solo5_systemd.image.store import STORE
from solo5_systemd.network.kernel_events import AnnouncedPackets
from solo5_systemd.network.lease_files import read_lease_records, read_networks
from solo5_systemd.network.model import LeaseState
from solo5_systemd.network.modules import BRIDGE, MACVLAN
from solo5_systemd.network.modules import TUN as TUN_MODULE
from solo5_systemd.network.namespaces import in_new_namespace
from solo5_systemd.network.netlink import NETLINK_ROUTE, NetlinkSocket, check_netfilter, named, new_link
from solo5_systemd.network.network_ranges import Overtaken
from solo5_systemd.network.routes import overtaken
from solo5_systemd.settings.files import ETC, RUN, read_settings
from solo5_systemd.settings.network_policy import Network
from solo5_systemd.settings.solo5_toml import Settings
from solo5_systemd.storage.quotas import space_of
from solo5_systemd.unit.confinement import KVM, TUN, USER
from solo5_systemd.unit.tender import LAUNCHER, Tender

FILES = (
    "usr/lib/systemd/system/solo5.slice",
    "usr/lib/systemd/system/solo5-network@.service",
    "usr/lib/systemd/system/solo5-networkd.service",
    "usr/lib/systemd/system/solo5-outcome-declared@.target",
    "usr/lib/systemd/system/solo5-outcome@.target",
    "usr/lib/systemd/system/solo5-relay.service",
    "usr/lib/systemd/system/solo5-thaw@.service",
    "usr/share/dbus-1/system-services/org.solo5.Network1.service",
    "usr/share/dbus-1/system-services/org.solo5.Relay1.service",
    "usr/share/dbus-1/system.d/org.solo5.Network1.conf",
    "usr/share/dbus-1/system.d/org.solo5.Relay1.conf",
)
"""The package's files outside of the Python modules."""

ROOT = Path("/")
"""The root directory of files; devices, users, modules and libraries are always this host's."""

SYSTEMCTL = "/usr/bin/systemctl"
_IPTABLES = {"ip": "iptables", "ip6": "ip6tables"}
_PROGRAMS = "/usr/sbin"


async def probe(*, systemd: int | None = None, settings: Settings | None = None) -> Host:
    """Read the state of this host.

    Args:
        systemd: the version, if the caller has it from PID 1; None: `systemctl --version` is executed.
        settings: the settings, if the caller has read them; None: those of /etc/solo5.
    """
    problem = ""
    if settings is None:
        settings = Settings()
        try:
            settings = read_settings(ROOT / ETC.relative_to("/"), ROOT / RUN.relative_to("/"))
        except Solo5Error as error:
            problem = str(error)
    tenders: list[Tender] = []
    unusable: dict[Target, str] = {}
    for target in Target:
        try:
            tenders += [tender async for tender in TenderPath(settings.tender_paths).all(target)]
        except Solo5Error as error:
            unusable[target] = str(error)
    controllers = None
    with suppress(OSError):  # cgroup v1
        controllers = tuple((ROOT / "sys/fs/cgroup/cgroup.controllers").read_text().split())
    version = systemd is None and re.match(r"systemd ([0-9]+)", _systemctl("--version"))
    drop_ins = [partial(check_drop_ins, f"{TASK_PREFIX}*.{kind}", declared=False) for kind in ("service", "scope")]
    directory = ROOT / STORE.relative_to("/")
    space = space_of(directory if os.access(directory, os.F_OK) else ROOT / "var/lib")  # or not for this user
    return Host(
        systemd=systemd if systemd is not None else int(version[1]) if version else None,
        booted=(ROOT / "run/systemd/system").is_dir(),
        controllers=controllers,
        missing=missing_dependencies(settings),
        files={f"/{name}": (ROOT / name).exists() for name in FILES},
        user=not _problem(lambda: pwd.getpwnam(USER), KeyError),
        settings=problem,
        tenders=tuple(tenders),
        unusable=unusable,
        tender_paths=settings.tender_paths,
        devices={
            KVM: _problem(lambda: groups_for(Target.HVT, nics=False)) or _kvm_problem(),
            TUN: _problem(lambda: groups_for(Target.SPT, nics=True)),
        },
        store=(str(directory), space.free, settings.limits.reserve(space.size)),
        networks=settings.networks,
        launcher=os.access(ROOT / LAUNCHER.removeprefix("/"), os.X_OK),
        drop_ins=next(filter(None, map(_problem, drop_ins)), ""),
        persistent_journal=(ROOT / "var/log/journal").is_dir(),
        log_namespace=settings.log_namespace,
        namespace_problem=await asyncio.to_thread(_namespace_problem, settings.log_namespace),
        kernel=await asyncio.to_thread(read_kernel, settings.networks),
    )


def _namespace_problem(namespace: str) -> str:
    """Return why the journald of a namespace cannot run; empty if it can, or without a namespace."""
    if not namespace:
        return ""
    shown = _systemctl("show", "--property=LoadState,ActiveState", journald_of(namespace)).splitlines()
    states = {line.partition("=")[2] for line in shown}
    return next((f"its journald is {state}" for state in ("not-found", "masked", "failed") if state in states), "")


def _systemctl(*words: str) -> str:
    """Return the output of systemctl(1); empty where it fails."""
    try:
        done = subprocess.run([SYSTEMCTL, *words], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def _problem(check: Callable[[], object], kind: type[Exception] = Solo5Error) -> str:
    try:
        check()
    except kind as error:
        return str(error)
    return ""


def _open_error(node: str) -> OSError | None:
    """Return the error of an open of a device node with the rights of this process."""
    try:
        os.close(os.open(node, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return error
    return None


def _kvm_problem() -> str:
    """Return why KVM cannot be opened; empty if it can: `groups_for` checks the permissions of tenders."""
    error = _open_error(KVM)
    return "" if error is None else f"{KVM} cannot be opened: {error.strerror}."


def missing_dependencies(settings: Settings) -> tuple[Dependency, ...]:
    """Return the missing dependencies; among them the server of DHCP and router advertisements if a network has one."""
    served = any(network.policy.dhcp or network.ra for network in settings.networks)
    wanted = (*DEPENDENCIES, DHCP_SERVER) if served else DEPENDENCIES
    return tuple(each for each in wanted if not _is_present(each))


def _is_present(dependency: Dependency) -> bool:
    path = ROOT / dependency.name.removeprefix("/")
    match dependency.kind:
        case Kind.MODULE:
            return any(map(_is_module, filter(None, (dependency.preferred, dependency.name))))
        case Kind.LIBRARY:
            return not _problem(lambda: CDLL(dependency.name), OSError)
        case Kind.PROGRAM:
            return os.access(path, os.X_OK)
        case Kind.SOCKET:
            return path.is_socket()


def _is_module(name: str) -> bool:
    """Return whether a module can be imported; an empty directory, a namespace package to Python, does not count."""
    try:
        spec = find_spec(name)
    except ModuleNotFoundError:  # its parent package is missing
        return False
    return spec is not None and spec.origin is not None


def read_kernel(networks: Sequence[Network]) -> Kernel:
    """Read what the kernel has; firewall chains are those of this network namespace, for networks of the settings."""
    dropping, forwarding, forwarding6 = _read_filters(networks)
    return Kernel(
        dropping_chains=dropping,
        forwarding_tables=forwarding,
        forwarding_tables6=forwarding6,
        run_free=space_of(ROOT / "run").free,
        missing_modules=missing_modules(),
        lacks_log=lacks_log(),
    )


def overtaken_guests() -> Sequence[Overtaken]:
    """Return one guest for each route of another program that takes the packets for guests of a network.

    It is no part of `probe`, which the plugin calls at an interval: it reads a record and a route for each guest.
    """
    # The host's routes do not apply in another network namespace.
    records = (each for each in read_lease_records() if each.state is LeaseState.ATTACHED and not each.namespace)
    found = overtaken(read_networks(), (lease for record in records for lease in record.reservation.leases))
    return tuple({(each.inside, each.route): each for each in found}.values())


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
            if route.run([new_link(kind, b"", named(kind))]) == [errno.EOPNOTSUPP]:
                yield kind
    if (error := _open_error(TUN)) is not None and error.errno == errno.ENODEV:  # a missing node is another fact
        yield TUN_MODULE


def _read_filters(
    networks: Sequence[Network],
) -> tuple[Sequence[other_firewalls.DroppingChain] | None, Sequence[str], Sequence[str]]:
    """Return the values of `Kernel.dropping_chains`, `forwarding_tables` and `forwarding_tables6`."""
    if os.geteuid() != 0:  # libnftables would write to stderr that it is refused
        return None, (), ()
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
    legacy = [each for of in _IPTABLES for each in other_firewalls.saved_listing(_legacy_rules(of), of)]
    found = other_firewalls.dropping([*_tables(nft, filter(other_firewalls.may_drop, chains)), *legacy], networks)
    return found, _forwarding(nft, chains, 4), _forwarding(nft, chains, 6)


def _forwarding(nft: Any, chains: Sequence[Mapping[str, Any]], version: int) -> Sequence[str]:
    """Return the tables of programs for which the host forwards, where this service drops packets between others."""
    family = "ip" if version == 4 else "ip6"
    ours = _listed(nft, {"chain": {"family": family, "table": "solo5", "name": "foreign"}}) or ()
    if not other_firewalls.drops_foreign(ours):
        return ()
    translations = [chain for chain in chains if other_firewalls.is_translation(chain, version)]
    return other_firewalls.translating(_tables(nft, translations), version)


def _tables(nft: Any, chains: Iterable[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return the listings of the tables of these chains, one after the other."""
    names = dict.fromkeys((chain["family"], chain["table"]) for chain in chains)
    listings = (_listed(nft, {"table": {"family": family, "name": name}}) or () for family, name in names)
    return [item for listing in listings for item in listing]


def _legacy_rules(family: str) -> str:
    """Return the rules of iptables' older kernel interface, which nftables does not list; empty where it is unused."""
    command = (f"{_PROGRAMS}/{_IPTABLES[family]}-legacy-save", "-t", "filter")
    try:
        if b"filter" not in (ROOT / f"proc/net/{family}_tables_names").read_bytes().split():
            return ""
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _listed(nft: Any, what: Mapping[str, object]) -> Sequence[Mapping[str, Any]] | None:
    code, output, _ = nft.json_cmd({"nftables": [{"list": what}]})
    return output.get("nftables", ()) if code == 0 else None
