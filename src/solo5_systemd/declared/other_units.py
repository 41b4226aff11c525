"""Other units that have the name of a declaration, or hide its unit: unit files, Quadlets, scripts of /etc/init.d.

Units of other generators are found by what they are made of: PID 1 executes all generators at the same time, and
empties their directories before. A unit there would be hidden by ours, which are in a directory of higher precedence.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from solo5_systemd.base.declared_units import is_ours
from solo5_systemd.base.errors import TakenError
from solo5_systemd.declared.declaration import SUFFIX
from solo5_systemd.host.drop_ins import UNITS, merged_drop_ins
from solo5_systemd.settings.files import ETC

QUADLETS = ("/etc/containers/systemd", "/run/containers/systemd", "/usr/share/containers/systemd")
"""Where the generator of podman finds its files (podman-systemd.unit(5))."""

_QUADLET = {
    ".container": "",
    ".kube": "",
    ".pod": "-pod",
    ".volume": "-volume",
    ".network": "-network",
    ".image": "-image",
    ".build": "-build",
    ".artifact": "-artifact",  # since podman 5.7
}
"""What a file of podman adds to its name for that of its service, without ServiceName=."""

INIT_SCRIPTS = "/etc/init.d"
"""Of systemd-sysv-generator."""


def of_generators(quadlets: Sequence[str] = QUADLETS, init_scripts: str = INIT_SCRIPTS) -> Mapping[str, Path]:
    """Return the services that other generators make, with the file that each is made of."""
    found: dict[str, Path] = {}
    with suppress(OSError):
        # That generator skips scripts that are not executable.
        scripts = (path for path in Path(init_scripts).iterdir() if os.access(path, os.X_OK))
        found |= {f"{path.name.removesuffix('.sh')}.service": path for path in scripts}
    for top in quadlets:
        for parent, below, files in os.walk(top):
            if parent == top and "users" in below:  # Quadlets of users' managers, which make no units of PID 1
                below.remove("users")
            paths = (Path(parent, file) for file in files if Path(file).suffix in _QUADLET)
            found |= {f"{path.stem}{_QUADLET[path.suffix]}.service": path for path in paths}
    return found


def unit_files(directories: Sequence[str] = UNITS) -> Mapping[str, frozenset[str]]:
    """Return the names of the files in each directory of units that there is: for many calls of `check_free`."""
    found = {}
    for directory in directories:
        with suppress(OSError):
            found[directory] = frozenset(os.listdir(directory))  # noqa: PTH208 - for strings
    return found


def check_free(name: str, generated: Mapping[str, Path], units: Mapping[str, frozenset[str]]) -> None:
    """Raise TakenError if another unit has the name of a declaration; a mask and an edited copy of ours are none.

    A socket unit of this name would start the task. Of an instance, the template may be another program's.

    Args:
        generated: as of `of_generators`.
        units: as of `unit_files`.
    """
    if name.startswith("solo5-"):
        raise TakenError(f"{name} begins with solo5-, as units of solo5-systemd do: expected another name.")
    prefix, at, _ = name.partition("@")
    for unit in dict.fromkeys((f"{name}.service", f"{name}.socket", f"{prefix}{at}.service")):
        files = (Path(directory, unit) for directory, names in units.items() if unit in names)
        others = (file for file in files if os.path.realpath(file) != "/dev/null" and not is_ours(file))
        other = next(others, generated.get(unit))
        if other is not None:
            has = "is" if other.name == unit else "is made of"
            raise TakenError(f"unit {unit} {has} {other} already: expected a name that no other unit has.")


def check_effect(name: str, directories: Sequence[str] = UNITS) -> None:
    """Raise TakenError for a drop-in of a declaration that is where those of its unit are, and would have no effect."""
    place = f"{ETC}/{name}{SUFFIX}.d"
    for suffix, what in ((SUFFIX, "it"), (".service", "section [Unikernel]")):
        for _, path in merged_drop_ins(f"{name}{suffix}", directories).values():
            if suffix == SUFFIX or _has_section(path):
                raise TakenError(
                    f"{path} has no effect on declaration {name}: expected {what} in {place}.",
                    f"mkdir -p {place}, and move it there; then: systemctl daemon-reload",
                )


def _has_section(path: Path) -> bool:
    with suppress(OSError):
        return "[Unikernel]" in map(str.strip, path.read_text(errors="replace").splitlines())
    return False
