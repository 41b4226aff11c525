"""The run-time dependencies: Python modules, libraries, programs and sockets.

`solo5ctl doctor`, the Nomad driver's fingerprint, the hints of errors and the tests that remove each dependency derive
from this list. A test compares it with pyproject.toml and debian/control, with docs/dependencies.md (with what fails
without each), and with what the code imports, loads, executes and connects to.
"""

import re
from enum import StrEnum
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
        pip: distribution on PyPI; empty for other kinds than modules.
        preferred: of a module, another one that is used in its place where it is installed.
        unit: of a socket, the systemd unit that listens on it.
    """

    kind: Kind
    name: str
    debian: str
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

_LIBRARY = r"([^\s/]+\.so[.0-9]*): (\S.*)"
"""The error text of ld.so(8) and dlopen(3): library and cause."""

_ABSENT = "cannot open shared object file"

EXIT_CONFIG = 78
"""Exit status of a service with a missing dependency: EX_CONFIG of sysexits(3)."""

DEPENDENCIES = (
    Dependency(Kind.MODULE, "dbus_next", "python3-dbus-next", "dbus-next", "dbus_fast"),
    Dependency(Kind.MODULE, "google.protobuf", "python3-protobuf", "protobuf"),
    Dependency(Kind.MODULE, "grpc", "python3-grpcio", "grpcio"),
    Dependency(Kind.MODULE, "msgpack", "python3-msgpack", "msgpack"),
    Dependency(Kind.MODULE, "nftables", "python3-nftables", "pip-nftables"),
    Dependency(Kind.MODULE, "pyroute2", "python3-pyroute2", "pyroute2"),
    Dependency(Kind.MODULE, "pystemd", "python3-pystemd", "pystemd"),
    Dependency(Kind.LIBRARY, "libnftables.so.1", "libnftables1"),
    Dependency(Kind.LIBRARY, "libnss_systemd.so.2", "libnss-systemd"),  # with it, systemd resolves the users of tasks
    Dependency(Kind.LIBRARY, "libsystemd.so.0", "libsystemd0"),
    Dependency(Kind.PROGRAM, "/usr/bin/busctl", "systemd"),
    Dependency(Kind.PROGRAM, "/usr/bin/flock", "util-linux"),
    Dependency(Kind.PROGRAM, "/usr/bin/grep", "grep"),
    Dependency(Kind.PROGRAM, "/usr/bin/nice", "coreutils"),
    Dependency(Kind.PROGRAM, "/usr/bin/nsenter", "util-linux"),
    Dependency(Kind.PROGRAM, "/usr/bin/prlimit", "util-linux"),
    Dependency(Kind.PROGRAM, "/usr/bin/setpriv", "util-linux"),
    Dependency(Kind.PROGRAM, "/usr/bin/systemctl", "systemd"),
    Dependency(Kind.PROGRAM, "/usr/bin/systemd-creds", "systemd"),
    Dependency(Kind.PROGRAM, "/usr/bin/unshare", "util-linux"),
    Dependency(Kind.SOCKET, SYSTEM_BUS, "dbus", unit="dbus.socket"),
    Dependency(Kind.SOCKET, "/run/systemd/journal/io.systemd.journal", "systemd", unit="systemd-journald.service"),
    Dependency(Kind.SOCKET, "/run/systemd/journal/socket", "systemd", unit="systemd-journald.socket"),
    Dependency(Kind.SOCKET, "/run/systemd/journal/stdout", "systemd", unit="systemd-journald.socket"),
)


DHCP_SERVER = Dependency(Kind.PROGRAM, "/usr/sbin/dnsmasq", "dnsmasq-base")
"""Missing only where a network has `dhcp = true` or `ra = true`; the package recommends it."""


def advice(name: str) -> str:
    """Return what to do if a program or socket is missing; empty if it is not in the list."""
    return next((each.advice for each in DEPENDENCIES if each.name == name), "")


def dependency_error(error: ImportError | OSError) -> DependencyError:
    """Return the error for a failed import or a failed load of a library.

    Dependencies of dependencies, which are not in the list, are named too. For one that exists and cannot be used, such
    as one of another version, the error has the text of the import.

    Raises:
        ImportError, OSError: the error itself, if it is a fault of this package.
    """
    name, why = getattr(error, "name", None) or "solo5_systemd", str(error)
    kind, is_missing = Kind.MODULE, isinstance(error, ModuleNotFoundError)
    if library := re.search(_LIBRARY, why):
        name, why = library.groups()
        kind, is_missing = Kind.LIBRARY, why.startswith(_ABSENT)
    elif name.partition(".")[0] == "solo5_systemd":
        raise error
    all_of_kind = (each for each in DEPENDENCIES if each.kind is kind)
    related = (
        each for each in all_of_kind if f"{name}.".startswith(f"{each.name}.") or each.name.startswith(f"{name}.")
    )
    listed = next(related, None)
    if is_missing and listed:
        return listed.missing()
    expected = "is missing: expected it to be installed with a dependency of this package"
    problem = expected if is_missing else f"cannot be used: {why.rstrip('.')}"
    return DependencyError(f"{kind} {name} {problem}.", listed.advice if listed else REINSTALL)
