"""The probe behind `solo5ctl doctor`: reads the state of this host and changes nothing."""

import asyncio
import os
import pwd
import re
import subprocess
from collections.abc import Callable
from ctypes import CDLL
from importlib.util import find_spec
from pathlib import Path

from solo5_systemd.base.dependencies import DEPENDENCIES, DHCP_SERVER, Dependency, Kind
from solo5_systemd.base.errors import SettingsError, Solo5Error
from solo5_systemd.base.names import TASK_PREFIX, Target, journald_of
from solo5_systemd.host.checks import Host
from solo5_systemd.host.drop_ins import UNITS, check_drop_ins
from solo5_systemd.host.kernel import kvm_problem, read_kernel
from solo5_systemd.host.tenders import TenderPath, groups_for
from solo5_systemd.image.store import STORE
from solo5_systemd.settings.files import ETC, RUN, read_settings
from solo5_systemd.settings.node_limits import Limits
from solo5_systemd.settings.solo5_toml import Settings
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

SYSTEMCTL = "/usr/bin/systemctl"


async def probe(root: Path = Path("/"), *, systemd: int | None = None, settings: Settings | None = None) -> Host:
    """Read the state of this host.

    Args:
        root: the root directory of files; devices, users, modules and libraries are always this host's.
        systemd: the version, if the caller has it from PID 1; None: `systemctl --version` is executed.
        settings: the settings, if the caller has read them; None: those of /etc/solo5.
    """
    problem = ""
    if settings is None:
        settings, problem = _settings(root)
    tenders: tuple[Tender, ...] = ()
    try:
        path = TenderPath(settings.tender_paths)
        tenders = tuple([tender for target in Target async for tender in path.all(target)])
    except SettingsError as error:
        problem = problem or str(error)
    controllers, cpuinfo = _text(root / "sys/fs/cgroup/cgroup.controllers"), _text(root / "proc/cpuinfo") or ""
    flags = re.search(r"^flags\s*:(.*)$", cpuinfo, re.MULTILINE)
    return Host(
        systemd=_systemd_version() if systemd is None else systemd,
        booted=(root / "run/systemd/system").is_dir(),
        controllers=None if controllers is None else tuple(controllers.split()),
        missing=(*missing_dependencies(root), *_missing_server(root, settings)),
        files={f"/{name}": (root / name).exists() for name in FILES},
        user=not _problem(lambda: pwd.getpwnam(USER), KeyError),
        settings=problem,
        tenders=tenders,
        tender_paths=settings.tender_paths,
        devices={
            KVM: _problem(lambda: groups_for(Target.HVT, nics=False)) or kvm_problem(),
            TUN: _problem(lambda: groups_for(Target.SPT, nics=True)),
        },
        virtualization=flags is None or not {"svm", "vmx"}.isdisjoint(flags[1].split()),  # only x86 has a line `flags`
        store=_store(root / STORE.relative_to("/"), settings.limits),
        networks=settings.networks,
        launcher=os.access(root / LAUNCHER.removeprefix("/"), os.X_OK),
        drop_ins=next(filter(None, (_drop_in_problem(root, kind) for kind in ("service", "scope"))), ""),
        persistent_journal=(root / "var/log/journal").is_dir(),
        log_namespace=settings.log_namespace,
        namespace_problem=await asyncio.to_thread(_namespace_problem, settings.log_namespace),
        kernel=await asyncio.to_thread(read_kernel, root, settings.networks),
    )


def _systemd_version() -> int | None:
    match = re.match(r"systemd ([0-9]+)", _systemctl("--version"))
    return int(match[1]) if match else None


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


def _text(file: Path) -> str | None:
    try:
        return file.read_text()
    except OSError:
        return None


def _settings(root: Path) -> tuple[Settings, str]:
    try:
        return read_settings(root / ETC.relative_to("/"), root / RUN.relative_to("/")), ""
    except Solo5Error as error:
        return Settings(), str(error)


def _drop_in_problem(root: Path, kind: str) -> str:
    directories = [str(root / each.removeprefix("/")) for each in UNITS]
    return _problem(lambda: check_drop_ins(f"{TASK_PREFIX}*.{kind}", declared=False, directories=directories))


def _problem(check: Callable[[], object], kind: type[Exception] = Solo5Error) -> str:
    try:
        check()
    except kind as error:
        return str(error)
    return ""


def _store(directory: Path, limits: Limits) -> tuple[str, int, int] | None:
    try:
        status = os.statvfs(directory)
    except OSError:
        return None
    return str(directory), status.f_bavail * status.f_frsize, limits.reserve(status.f_blocks * status.f_frsize)


def missing_dependencies(root: Path = Path("/")) -> tuple[Dependency, ...]:
    """Return the missing dependencies.

    Args:
        root: the root directory of programs and sockets; modules and libraries are always those of this process.
    """
    return tuple(each for each in DEPENDENCIES if not _is_present(each, root))


def _missing_server(root: Path, settings: Settings) -> tuple[Dependency, ...]:
    """Return the server of DHCP and router advertisements if it is missing and a network has one."""
    wanted = any(network.policy.dhcp or (network.ipv6 and network.ipv6.ra) for network in settings.networks)
    return () if not wanted or _is_present(DHCP_SERVER, root) else (DHCP_SERVER,)


def _is_present(dependency: Dependency, root: Path) -> bool:
    path = root / dependency.name.removeprefix("/")
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
