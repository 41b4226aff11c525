"""Commands for which files of the machine do not exist: each in a mount namespace and an overlay of its own."""

import os
import re
import subprocess
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from tests.machine.conftest import ok, sh

from solo5_systemd.base.dependencies import Dependency, Kind

MODULES = Path("/usr/lib/python3/dist-packages")
LIBRARIES = Path(f"/usr/lib/{os.uname().machine}-linux-gnu")

_SCRIPT = """\
mount -t tmpfs tmpfs /mnt
number=0
while [ "$1" != -- ]; do
    number=$((number + 1))
    mkdir -p /mnt/$number/upper /mnt/$number/work /mnt/$number/lower
    if [ "$1" = /usr ]; then
        mount -t overlay overlay -o "lowerdir=$1,upperdir=/mnt/$number/upper,workdir=/mnt/$number/work" "$1"
    else  # an overlay's sockets have nobody who listens
        mount --bind "$1" /mnt/$number/lower
        mount -t tmpfs tmpfs "$1"
        for file in /mnt/$number/lower/*; do
            if [ -d "$file" ]; then mkdir "$1/${file##*/}"; else touch "$1/${file##*/}"; fi
            mount --bind "$file" "$1/${file##*/}"
        done
    fi
    shift
done
shift
while [ "$1" != -- ]; do
    case $1 in /run/*) umount "$1" ;; esac
    rm -r "$1"
    shift
done
shift
exec "$@"
"""


def path(dependency: Dependency) -> Path:
    """Where it is in the machine."""
    match dependency.kind:
        case Kind.MODULE:
            return MODULES.joinpath(*dependency.name.split("."))
        case Kind.LIBRARY:
            return LIBRARIES / dependency.name
        case Kind.PROGRAM | Kind.SOCKET:
            return Path(dependency.name)


def paths(dependency: Dependency) -> set[Path]:
    """What has to be taken away for it to be missing."""
    return {path(dependency), MODULES / dependency.preferred} if dependency.preferred else {path(dependency)}


def packages(dependency: Dependency) -> set[str]:
    """The Debian package that has it; of a socket, that of its unit and those that depend on that."""
    file = Path("/usr/lib/systemd/system", dependency.unit) if dependency.unit else path(dependency)
    listed = (str(file), str(file).removeprefix("/usr"))  # dpkg has some of Debian 12's programs in /bin
    owner = next(
        done.stdout for each in listed if (done := sh("dpkg-query", "--search", each)).returncode == 0
    ).partition(":")[0]
    if not dependency.unit:
        return {owner}
    installed = ok("dpkg-query", "--show", "--showformat", "${Package}\t${Depends}\n").splitlines()
    lines = (line.split("\t") for line in installed)
    return {owner} | {name for name, depends in lines if owner in re.findall(r"[a-z0-9.+-]+", depends)}


def without(paths: Collection[Path], command: Sequence[str]) -> list[str]:
    """The command line that executes a command for which these paths do not exist; it keeps its process id."""
    roots = {str(_root(each)) for each in paths}
    gone = sorted(map(str, paths))
    return [
        "unshare", "--mount", "--propagation=private", "sh", "-euc", _SCRIPT, "sh", *roots, "--", *gone, "--", *command,
    ]  # fmt: skip


def run_without(paths: Collection[Path], *command: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return sh(*without(paths, command), **options)


def _root(file: Path) -> Path:
    """What the overlay covers: the sockets in /run are each others' neighbours, and /run itself is a mount point."""
    return Path("/usr") if file.is_relative_to("/usr") else file.parent
