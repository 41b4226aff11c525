"""The run-time dependencies: Python modules, libraries, programs and sockets.

`solo5ctl doctor`, the Nomad driver's fingerprint, the hints of errors, the table in docs/dependencies.md and the tests
that remove each dependency derive from this list. A test compares it with pyproject.toml, with debian/control, and with
what the code imports, loads, executes and connects to.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from importlib.util import find_spec, module_from_spec
from typing import NamedTuple

from solo5_systemd.base.errors import DependencyError

SYSTEM_BUS = "/run/dbus/system_bus_socket"
"""The socket of the system bus (dbus.socket)."""


class Kind(StrEnum):
    """The kind of a dependency: found by import, dlopen(3), execve(2) or connect(2)."""

    MODULE = "Python module"
    LIBRARY = "library"
    PROGRAM = "program"
    SOCKET = "socket"


class Dependency(NamedTuple):  # no dataclass, whose import takes a quarter of that of asyncio
    """A dependency.

    Attributes:
        name: import name of a module, soname of a library, path of a program or socket.
        needed_by: the verbs of `solo5ctl`, and the other programs and units of this package, that fail without it.
        pip: distribution on PyPI; empty for other kinds than modules.
        preferred: of a module, another one that is used in its place where it is installed.
        unit: of a socket, the systemd unit that listens on it.
    """

    kind: Kind
    name: str
    debian: str
    needed_by: tuple[str, ...]
    pip: str = ""
    preferred: str = ""
    unit: str = ""

    @property
    def advice(self) -> str:
        """Return what to do if it is missing."""
        if self.pip:
            return f"Install {self.debian} (Debian) or {self.pip} (pip)."
        if self.unit:
            return f"Install {self.debian} (Debian), and start it: systemctl start {self.unit}"
        return f"Install {self.debian} (Debian)."

    def missing(self) -> DependencyError:
        """Return the error for a missing dependency."""
        expected = "a service that listens there" if self.kind is Kind.SOCKET else "it to be installed"
        return DependencyError(f"{self.kind} {self.name} is missing: expected {expected}.", self.advice)


REINSTALL = "Reinstall the Debian package: apt install --reinstall solo5-systemd"
"""The hint for a missing dependency of a dependency."""

_LIBRARY = re.compile(r"([^\s/]+\.so[.0-9]*): (\S.*)")
"""The error text of ld.so(8) and dlopen(3): library and cause."""

_ABSENT = "cannot open shared object file"

EXIT_CONFIG = 78
"""Exit status of a service with a missing dependency: EX_CONFIG of sysexits(3)."""

NETWORKD, RELAY, DRIVER = "solo5-networkd", "solo5-relay", "the Nomad driver"

STARTS = ("run", "run --detach", "run --scope", "run --dry-run")
READS = ("ps", "inspect", "export", "logs", "stats", "metrics")
"""Verbs that call systemd through pystemd, without an event loop."""

CALLS = (
    *("ps --all", "stop", "kill", "rm", "wait", "restart", "sleep", "wake", "freeze", "thaw"),
    *("network", "gc", "update", "rollback"),
    *STARTS,
)
"""Verbs that call systemd or a service in an event loop."""

TASKS = (*READS, *CALLS)
"""Verbs that call systemd."""


DEPENDENCIES = (
    Dependency(
        Kind.MODULE, "dbus_next", "python3-dbus-next", (*CALLS, NETWORKD, RELAY, DRIVER), "dbus-next", "dbus_fast"
    ),
    Dependency(Kind.MODULE, "google.protobuf", "python3-protobuf", (DRIVER,), "protobuf"),
    Dependency(Kind.MODULE, "grpc", "python3-grpcio", (DRIVER,), "grpcio"),
    Dependency(Kind.MODULE, "msgpack", "python3-msgpack", (DRIVER,), "msgpack"),
    Dependency(Kind.MODULE, "nftables", "python3-nftables", (NETWORKD, DRIVER), "pip-nftables"),
    Dependency(Kind.MODULE, "pyroute2", "python3-pyroute2", (NETWORKD, DRIVER), "pyroute2"),
    Dependency(Kind.MODULE, "pystemd", "python3-pystemd", READS, "pystemd"),
    Dependency(Kind.LIBRARY, "libnftables.so.1", "libnftables1", (NETWORKD, DRIVER)),
    # With it, systemd resolves the users of tasks.
    Dependency(
        Kind.LIBRARY, "libnss_systemd.so.2", "libnss-systemd", ("run", "run --detach", "run --scope", DRIVER)
    ),
    Dependency(Kind.LIBRARY, "libsystemd.so.0", "libsystemd0", (*READS, "run", RELAY, DRIVER)),
    Dependency(Kind.PROGRAM, "/usr/bin/busctl", "systemd", ("solo5-network@.service",)),
    Dependency(Kind.PROGRAM, "/usr/bin/flock", "util-linux", ("solo5-thaw@.service",)),
    Dependency(Kind.PROGRAM, "/usr/bin/grep", "grep", (DRIVER,)),
    Dependency(Kind.PROGRAM, "/usr/bin/nice", "coreutils", (DRIVER,)),
    Dependency(Kind.PROGRAM, "/usr/bin/nsenter", "util-linux", (DRIVER,)),
    Dependency(Kind.PROGRAM, "/usr/bin/prlimit", "util-linux", (DRIVER,)),
    Dependency(Kind.PROGRAM, "/usr/bin/setpriv", "util-linux", ("run --scope", DRIVER)),
    Dependency(Kind.PROGRAM, "/usr/bin/systemctl", "systemd", ()),
    Dependency(Kind.PROGRAM, "/usr/bin/systemd-creds", "systemd", ()),
    Dependency(Kind.PROGRAM, "/usr/bin/unshare", "util-linux", ("run --scope", DRIVER)),
    Dependency(Kind.SOCKET, SYSTEM_BUS, "dbus", (*TASKS, NETWORKD, RELAY, DRIVER), unit="dbus.socket"),
    Dependency(
        Kind.SOCKET, "/run/systemd/journal/io.systemd.journal", "systemd", (), unit="systemd-journald.service"
    ),
    Dependency(Kind.SOCKET, "/run/systemd/journal/socket", "systemd", (), unit="systemd-journald.socket"),
    Dependency(
        Kind.SOCKET, "/run/systemd/journal/stdout", "systemd", ("run", "run --detach", DRIVER),
        unit="systemd-journald.socket",
    ),
)  # fmt: skip


DHCP_SERVER = Dependency(Kind.PROGRAM, "/usr/sbin/dnsmasq", "dnsmasq-base", ("solo5-dhcp@.service",))
"""Missing only where a network has `dhcp = true` or `ra = true`."""

WHERE_NEEDED = (DHCP_SERVER,)
"""Dependencies that the package recommends."""


def advice(name: str) -> str:
    """Return what to do if a program or socket is missing; empty if it is not in the list."""
    return next((each.advice for each in DEPENDENCIES if each.name == name), "")


@contextmanager
def without_init(package: str) -> Iterator[None]:
    """Import submodules of a library, in the block, without its __init__.py, which imports all of the library.

    A later import of the library executes its __init__.py, but does not make these submodules its attributes.
    """
    spec = None if package in sys.modules else find_spec(package)
    if spec is not None:
        sys.modules[package] = module_from_spec(spec)  # not executed; submodules are found by its __path__
    try:
        yield
    finally:
        if spec is not None:
            del sys.modules[package]  # so that a later import of the library itself executes it


def dependency_error(error: ImportError | OSError) -> DependencyError:
    """Return the error for a failed import or a failed load of a library.

    Dependencies of dependencies, which are not in the list, are named too. For one that exists and cannot be used, such
    as one of another version, the error has the text of the import.

    Raises:
        ImportError, OSError: the error itself, if it is a fault of this package.
    """
    name, why = getattr(error, "name", None) or "solo5_systemd", str(error)
    kind, is_missing = Kind.MODULE, isinstance(error, ModuleNotFoundError)
    if library := _LIBRARY.search(why):
        name, why = library.groups()
        kind, is_missing = Kind.LIBRARY, why.startswith(_ABSENT)
    elif name.partition(".")[0] == "solo5_systemd":
        raise error
    all_of_kind = (each for each in (*DEPENDENCIES, *WHERE_NEEDED) if each.kind is kind)
    related = (
        each for each in all_of_kind if f"{name}.".startswith(f"{each.name}.") or each.name.startswith(f"{name}.")
    )
    listed = next(related, None)
    if not is_missing:
        return DependencyError(
            f"{kind} {name} cannot be used: {why.rstrip('.')}.", listed.advice if listed else REINSTALL
        )
    return (
        listed.missing()
        if listed
        else DependencyError(
            f"{kind} {name} is missing: expected it to be installed with a dependency of this package.", REINSTALL
        )
    )
