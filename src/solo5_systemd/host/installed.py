"""Detection of missing dependencies: modules, libraries, programs and sockets."""

import os
from ctypes import CDLL
from importlib.util import find_spec
from pathlib import Path

from solo5_systemd.dependencies import DEPENDENCIES, Dependency, Kind


def missing(root: Path = Path("/"), *, program: str | None = None) -> tuple[Dependency, ...]:
    """Return the missing dependencies.

    Args:
        root: the root directory of programs and sockets; modules and libraries are always those of this process.
        program: only dependencies of this program (`Dependency.needed_by`); None: all.
    """
    among = (each for each in DEPENDENCIES if program is None or program in each.needed_by)
    return tuple(each for each in among if not _is_present(each, root))


def _is_present(dependency: Dependency, root: Path) -> bool:
    path = root / dependency.name.removeprefix("/")
    match dependency.kind:
        case Kind.MODULE:
            return any(map(_is_module, filter(None, (dependency.preferred, dependency.name))))
        case Kind.LIBRARY:
            return _is_library(dependency.name)
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


def _is_library(name: str) -> bool:
    try:
        CDLL(name)
    except OSError:
        return False
    return True
