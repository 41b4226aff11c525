"""A machine as a virtual machine: QEMU, itself out of a Debian tree, boots kernel and disk of the machine's tree.

A machine that has just come up is saved once; later boots wake that snapshot up instead.
"""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from . import cache, enclosure, trees
from .abandoned import run_directory
from .errors import MachineError, MachineGoneError
from .machine import Machine, Wanted
from .qmp import Qmp
from .report import progress, show_console
from .session import Session, accept, listening

_BOOT_SECONDS = 240
_WAKE_SECONDS = 60
_BOOTS = 3
"""Attempts at a first boot: where QEMU emulates a machine of several processors it crashes now and then."""

# QEMU sees its own tree as /, the cache as /srv and this run's files as /mnt.
_IN_TREE = """
tree=$1 cache=$2 run=$3
shift 3
mount --bind "$tree" "$run/root"
mount --rbind /dev "$run/root/dev"
mount -t proc proc "$run/root/proc"
mount --bind "$cache" "$run/root/srv"
mount --bind "$run" "$run/root/mnt"
export TMPDIR=/mnt
exec chroot "$run/root" "$@"
"""

_SIZE = "8G"  # of a sparse file: room for what tests write

_FORMAT = """
lower=$1 target=$2
mkdir "$target/merged"
mount -t overlay -o "ro,lowerdir=$lower" machine "$target/merged"
truncate --size="$3" "$target/root.ext4"
mke2fs -q -F -t ext4 -O ^has_journal -L machine -d "$target/merged" "$target/root.ext4"
umount "$target/merged"
rmdir "$target/merged"
"""

_ENDS = "-no-reboot"
"""Without it, QEMU boots the same disk again."""

_KERNEL_LINE = "console=ttyS0 quiet panic=-1 mitigations=off systemd.show_status=0"

# QEMU's emulation brings AMD's virtualisation along, so that the machine has a /dev/kvm of its own.
# Without the features that an emulator pays for at each access to memory of user space, and with page tables of four
# levels, it takes a tenth less processor time.
EMULATION = ("-accel", "tcg,thread=multi", "-cpu", "max,+svm,-la57,-smap,-smep,-umip,-pku")
HARDWARE = ("-accel", "kvm", "-cpu", "host")


@contextmanager
def booted(wanted: Wanted, run: Path) -> Iterator[Machine]:
    """Boot *wanted* with its passing files in *run*, and end it when the context ends."""
    emulator = trees.tree(trees.EMULATOR, wanted.release)
    made = _disk(wanted.tree, wanted.layer)
    with cache.in_use(emulator, made):
        warm = _snapshot(emulator, made, wanted)
        with cache.in_use(warm), _running(emulator, run, _wake(made, warm, wanted), _WAKE_SECONDS) as session:
            state = json.loads((warm / "state.json").read_text())
            yield Machine(session=session, console=run / "console", state=state)


def _disk(tree: Path, layer: Path) -> Path:
    """Return the directory with ``root.ext4`` made of *layer* over *tree*."""

    def make(target: Path) -> None:
        progress("making the disk …")
        enclosure.run(_FORMAT, f"{layer}:{tree}", target, _SIZE, doing="making the disk")

    return cache.entry("disk", cache.digest(_FORMAT, _SIZE, cache.identity(layer.parent)), make)


def accelerator() -> tuple[str, ...]:
    """Return QEMU's words for KVM where it works, for emulation elsewhere.

    A /dev/kvm alone proves nothing: under a paravirtual KVM, whose processors show neither ``vmx`` nor ``svm``,
    QEMU stops with an internal error at the guest's first vector instruction.
    """
    flags = re.search("^flags.*", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    usable = flags and {"vmx", "svm"} & set(flags[0].split()) and os.access("/dev/kvm", os.R_OK | os.W_OK)
    return HARDWARE if usable else EMULATION


def is_killed(console: Path) -> bool:
    """Return whether an emulated machine's kernel panicked.

    QEMU runs the processors of an emulated machine in threads, and now and then one of them is found within an
    instruction of the kernel that another one has just replaced (a jump label, as of the hooks of nf_tables in
    ip_rcv). A panic of a machine on real processors is not excused so.
    """
    return accelerator() == EMULATION and b"Kernel panic - not syncing: " in console.read_bytes()


def _snapshot(emulator: Path, made: Path, wanted: Wanted) -> Path:
    key = cache.digest(cache.identity(made), cache.identity(emulator), _KERNEL_LINE, *_hardware(wanted))

    def make(target: Path) -> None:
        progress("booting the machine to take a snapshot of it …")
        for attempt in range(1, _BOOTS + 1):
            with run_directory() as run:
                try:
                    _save(emulator, made, target, run, wanted)
                except MachineError as error:
                    show_console(run / "console")
                    if attempt == _BOOTS or not isinstance(error, MachineGoneError):
                        raise
                    progress(f"{error}; booting again …")
                else:
                    return

    return cache.entry("snapshot", key, make)


def _save(emulator: Path, made: Path, target: Path, run: Path, wanted: Wanted) -> None:
    with _running(emulator, run, _cold(made, target, wanted), _BOOT_SECONDS) as session:
        (target / "state.json").write_text(json.dumps(session.ready()))
        Qmp(run / "qmp").save(_seen(target / "memory"))


@contextmanager
def _running(emulator: Path, run: Path, words: list[str], seconds: float) -> Iterator[Session]:
    (run / "root").mkdir()
    with listening(run / "channel") as server, (run / "console").open("wb") as log:
        process = subprocess.Popen(
            [*enclosure.UNDER_US, *enclosure.command(_IN_TREE, emulator, cache.directory(), run, *words)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            session = accept(server, process, seconds)
            session.within(seconds, "the boot")
            yield session
        finally:
            enclosure.end(process)


def _seen(path: Path) -> str:
    """Return a path in the cache as QEMU sees it."""
    return str(Path("/srv") / path.relative_to(cache.directory()))


def _hardware(wanted: Wanted) -> list[str]:
    return [
        "qemu-system-x86_64", "-machine", "q35", *accelerator(), "-smp", str(wanted.cpus), "-m", str(wanted.memory),
        "-nodefaults", "-no-user-config", "-display", "none", "-nic", "none",
        "-serial", "stdio", "-qmp", "unix:/mnt/qmp,server=on,wait=off",
        "-object", "rng-random,id=entropy,filename=/dev/urandom", "-device", "virtio-rng-pci,rng=entropy",
        # Tells the kernel when it wakes up from a snapshot, so that it draws new random numbers.
        "-device", "vmgenid,guid=auto",
        "-device", "virtio-serial-pci", "-chardev", "socket,id=channel,path=/mnt/channel",
        "-device", "virtserialport,chardev=channel,name=host-channel",
        "-device", "virtio-blk-pci,drive=root",
    ]  # fmt: skip


def _cold(made: Path, target: Path, wanted: Wanted) -> list[str]:
    base, changes = _seen(made / "root.ext4"), _seen(target / "changes.qcow2")
    machine = [*_hardware(wanted), *_kernel(wanted), "-drive", f"if=none,id=root,file={changes},cache=unsafe", _ENDS]
    create = f"qemu-img create -q -f qcow2 -F raw -b {base} {changes}"
    return ["sh", "-euc", f'{create}; exec "$@"', "sh", *machine]


def _wake(made: Path, warm: Path, wanted: Wanted) -> list[str]:
    changes = f"if=none,id=root,file={_seen(warm / 'changes.qcow2')},snapshot=on"
    words = [*_hardware(wanted), *_kernel(wanted), "-drive", changes, "-incoming", f"file:{_seen(warm / 'memory')}"]
    return words if wanted.reboots else [*words, _ENDS]


def _kernel(wanted: Wanted) -> list[str]:
    boot = wanted.tree / "boot"
    kernel = (boot / "kernel").resolve()
    return ["-kernel", _seen(kernel), "-initrd", _seen(boot / "early.cpio"), "-append", _KERNEL_LINE]
