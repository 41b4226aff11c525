"""Look for what the package depends on: modules, libraries, programs and sockets of this machine."""

import os
from ctypes import CDLL
from importlib.util import find_spec
from pathlib import Path

from solo5_systemd.dependencies import DEPENDENCIES, Dependency, Kind


def missing(root: Path = Path("/"), *, program: str | None = None) -> tuple[Dependency, ...]:
    """Return the dependencies that are not there.

    Args:
        root: where to look for programs and sockets; modules and libraries are always those of this process.
        program: only what this one needs (`Dependency.needed_by`).
    """
    among = (each for each in DEPENDENCIES if program is None or program in each.needed_by)
    return tuple(each for each in among if not _is_there(each, root))


def _is_there(dependency: Dependency, root: Path) -> bool:
    path = root / dependency.name.removeprefix("/")
    match dependency.kind:
        case Kind.MODULE:
            return _is_module(dependency.name)
        case Kind.LIBRARY:
            return _is_library(dependency.name)
        case Kind.PROGRAM:
            return os.access(path, os.X_OK)
        case Kind.SOCKET:
            return path.is_socket()


def _is_module(name: str) -> bool:
    """A directory that lost its files, which Python takes for a package without any, is none."""
    try:
        spec = find_spec(name)
    except ModuleNotFoundError:  # of the package that it is in
        return False
    return spec is not None and spec.origin is not None


def _is_library(name: str) -> bool:
    try:
        CDLL(name)
    except OSError:
        return False
    return True
