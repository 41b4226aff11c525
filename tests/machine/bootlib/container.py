"""A machine as a container: systemd-nspawn boots the tree on this kernel."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from . import cgroup, enclosure
from .machine import Machine, Wanted
from .session import accept, listening

_BOOT_SECONDS = 60
_DEVICES = ("kvm", "net/tun")

# The root is an overlay whose upper half is in memory; device nodes are made afresh, because the container's
# systemd sets their owner and mode, which for bound nodes would be those of this machine.
_ROOT = """
run=$1 lower=$2
shift 2
mount -t tmpfs -o mode=755 machine "$run/private"
cd "$run/private"
mkdir upper work root dev dev/net
mount -t overlay -o "lowerdir=$lower,upperdir=upper,workdir=work" machine root
while [ "$1" != -- ]; do mknod "dev/$1" c "$2" "$3"; shift 3; done
shift
echo 0 > "$MACHINE_CGROUP/cgroup.procs"
exec unshare --cgroup sh -euc '
    umount --recursive --lazy /sys/fs/cgroup
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    mkdir -p /run/systemd
    mount -t tmpfs tmpfs /run/systemd
    exec "$@"' sh "$@"
"""


@contextmanager
def booted(wanted: Wanted, run: Path) -> Iterator[Machine]:
    """Boot *wanted* with its passing files in *run*, and end it when the context ends."""
    (run / "private").mkdir()
    console = run / "console"
    with listening(run / "channel") as server, cgroup.delegated() as delegated, console.open("wb") as log:
        process = subprocess.Popen(
            _command(wanted, run, delegated), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            session = accept(server, process, _BOOT_SECONDS)
            session.within(_BOOT_SECONDS, "the boot")
            yield Machine(session=session, console=console, state=session.ready())
        finally:
            enclosure.end(process)


def _command(wanted: Wanted, run: Path, delegated: list[str]) -> list[str]:
    present = [name for name in _DEVICES if Path("/dev", name).exists()]
    nodes = [word for name in present for word in _node(name)]
    binds = [f"--bind={run}/private/dev/{name}:/dev/{name}" for name in present]
    return [
        *enclosure.UNDER_US, *delegated,
        *enclosure.command(_ROOT, run, f"{wanted.layer}:{wanted.tree}", *nodes, "--", *_nspawn(run), *binds),
    ]  # fmt: skip


def _node(name: str) -> tuple[str, str, str]:
    number = Path("/dev", name).stat().st_rdev
    return name, str(os.major(number)), str(os.minor(number))


def _nspawn(run: Path) -> list[str]:
    return [
        "systemd-nspawn", "--boot", f"--directory={run}/private/root", "--machine=machine", "--settings=no",
        "--register=no", "--keep-unit", "--link-journal=no", "--console=read-only",
        "--private-network", "--resolv-conf=off", "--timezone=off",
        # systemd confines devices of units with BPF programs, which nspawn's own filter would forbid it.
        "--system-call-filter=bpf",
        f"--bind={run}/channel:/run/host-channel",
    ]  # fmt: skip
