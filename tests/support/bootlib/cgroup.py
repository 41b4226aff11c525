"""A cgroup of the unified hierarchy for a container to be the root of."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .abandoned import abandoned, name
from .errors import MachineError

_BY_SYSTEMD = ("systemd-run", "--scope", "--quiet", "--collect", "--property=Delegate=yes")

# Controllers can only be handed down from a cgroup that holds no process itself: hence two below it.
_ENTER = """
cgroup=$1
shift
[ -n "$cgroup" ] || cgroup=$(findmnt -no TARGET -t cgroup2 | head -n 1)$(sed -n s/^0:://p /proc/self/cgroup)
mkdir "$cgroup/launcher" "$cgroup/machine"
echo 0 > "$cgroup/launcher/cgroup.procs"
for controller in $(cat "$cgroup/cgroup.controllers"); do echo "+$controller" > "$cgroup/cgroup.subtree_control"; done
export MACHINE_CGROUP="$cgroup/machine"
exec "$@"
"""


@contextmanager
def delegated(machine: str) -> Iterator[list[str]]:
    """Give the words to put before a command, so that it finds a cgroup of its own in ``$MACHINE_CGROUP``.

    Where systemd runs this machine it is asked for a scope, as cgroup delegation demands; elsewhere nobody else
    manages the hierarchy, and a cgroup is made and removed here.
    """
    if Path("/run/systemd/system").is_dir():
        yield [*_BY_SYSTEMD, *_enter("")]
        return
    root = _unified_mount()
    for left in abandoned(root):
        if "populated 0" in (left / "cgroup.events").read_text():  # else it belongs to another PID namespace
            _remove(left)
    made = root / f"{name()}-{machine}"
    made.mkdir()
    try:
        yield _enter(str(made))
    finally:
        _remove(made)


def _enter(cgroup: str) -> list[str]:
    return ["sh", "-euc", _ENTER, "sh", cgroup]


def _unified_mount() -> Path:
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, where, kind, *_ = line.split()
        if kind == "cgroup2":
            return Path(where)
    raise MachineError("no cgroup2 hierarchy is mounted on this machine; the container backend needs one")


def _remove(top: Path) -> None:
    """Remove *top* and all below it; the kernel may need a moment until the last process has left."""
    for _ in range(50):
        for folder, _, _ in os.walk(top, topdown=False):
            with suppress(OSError):
                Path(folder).rmdir()
        if not top.exists():
            return
        time.sleep(0.1)
    raise MachineError(f"cgroup {top} still has processes and could not be removed")
