"""A machine as a container: systemd-nspawn boots the tree on this kernel."""

import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from . import cgroup, enclosure
from .machine import Machine, Wanted
from .session import accept, listening

_BOOT_SECONDS = 120  # several may boot at once, on a machine that has other work
Starting = AbstractContextManager[Callable[[], Machine]]
_DEVICES = ("kvm", "net/tun")

# The root is an overlay whose upper half is in memory; device nodes are made afresh, because the container's
# systemd sets their owner and mode, which for bound nodes would be those of this machine.
# Where the caller has mounted it already, it outlives the container: a machine that boots again finds its files.
_ROOT = """
run=$1 lower=$2
shift 2
mountpoint -q "$run/private" || mount -t tmpfs -o mode=755 machine "$run/private"
cd "$run/private"
mkdir -p upper work root
rm -rf dev
mkdir -p dev/net
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
    with started(wanted, run) as machine:
        yield machine()


@contextmanager
def started(
    wanted: Wanted, run: Path, *, name: str = "machine", options: Sequence[str] = ()
) -> Iterator[Callable[[], Machine]]:
    """Start to boot *wanted*, and give a function that waits for the end of the boot.

    Args:
        run: the directory of the machine's passing files.
        name: of the machine, among those of this ``boot``.
        options: further options of systemd-nspawn.
    """
    (run / "private").mkdir(exist_ok=True)
    console = run / "console"
    with listening(run / "channel") as server, cgroup.delegated(name) as delegated, console.open("wb") as log:
        process = subprocess.Popen(
            _command(wanted, run, delegated, [f"--machine={name}", *options]),
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip

        def machine() -> Machine:
            session = accept(server, process, _BOOT_SECONDS)
            session.within(_BOOT_SECONDS, "the boot")
            return Machine(session=session, console=console, state=session.ready())

        try:
            yield machine
        finally:
            enclosure.end(process)


def _command(wanted: Wanted, run: Path, delegated: list[str], options: list[str]) -> list[str]:
    present = [name for name in _DEVICES if Path("/dev", name).exists()]
    nodes = [word for name in present for word in _node(name)]
    binds = [f"--bind={run}/private/dev/{name}:/dev/{name}" for name in present]
    return [
        *enclosure.UNDER_US, *delegated,
        *enclosure.command(_ROOT, run, f"{wanted.layer}:{wanted.tree}", *nodes, "--", *_nspawn(run), *binds, *options),
    ]  # fmt: skip


def _node(name: str) -> tuple[str, str, str]:
    number = Path("/dev", name).stat().st_rdev
    return name, str(os.major(number)), str(os.minor(number))


def _nspawn(run: Path) -> list[str]:
    return [
        "systemd-nspawn", "--boot", f"--directory={run}/private/root", "--settings=no",
        "--register=no", "--keep-unit", "--link-journal=no", "--console=read-only",
        "--private-network", "--resolv-conf=off", "--timezone=off",
        # systemd confines devices of units with BPF programs, which nspawn's own filter would forbid it.
        "--system-call-filter=bpf",
        f"--bind={run}/channel:/run/host-channel",
    ]  # fmt: skip
