"""A tender and its command line, with the paths of disks in the sandbox."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from solo5_systemd.base.names import Target
from solo5_systemd.network.model import Lease
from solo5_systemd.storage.model import Disk


@dataclass(frozen=True, kw_only=True)
class Tender:
    """A tender program, with what its --version prints.

    Attributes:
        loads: the libraries that its loader maps, as files; `LIBRARIES` if they could not be determined.
        loads_because: why they could not be determined; empty if they were.
        launcher: the program that executes the tender under a filter of arguments; empty: not installed.
    """

    path: str
    target: Target
    version: str
    abi_version: int
    loads: tuple[str, ...] = ()
    loads_because: str = ""
    launcher: str = ""


LAUNCHER = "/usr/libexec/solo5-confine"
"""The launcher, of the Debian package solo5-confine (`src/confine`)."""

LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
"""The built-in search path of the dynamic loader, and the loader itself."""


def device_options(
    memory_mib: int, leases: Iterable[Lease], disks: Iterable[Disk], disk_path: Callable[[Disk], str]
) -> tuple[str, ...]:
    """Return the tender's options; with the disks of `sandbox_path`, none has a blank or a quote.

    Args:
        disk_path: returns the path of a disk, as the tender sees it.
    """
    argv = []
    for lease in leases:
        # Always with a MAC, else the tender uses one that the image may preset.
        argv += [f"--net:{lease.nic}={lease.tap}", f"--net-mac:{lease.nic}={lease.mac}"]
    for disk in disks:
        argv += [
            f"--block:{disk.disk}={disk_path(disk)}",
            f"--block-sector-size:{disk.disk}={disk.sector_size}",
        ]
    # Last: the tender would parse a device option that follows it twice.
    return (*argv, f"--mem={memory_mib}")


DISKS = "/run/solo5-disks"
PRIVATE = "private-disk-ends-with-its-first-run"
"""A directory of private disks. PID 1 cannot mount them again when it restarts the service, and logs this path."""


def sandbox_path(disk: Disk) -> str:
    """Return the path of a disk in a service's mount namespace: without blanks, whatever its path on the host."""
    return f"{DISKS}/{PRIVATE}/{disk.disk}" if disk.is_private else lasting_path(disk)


def lasting_path(disk: Disk) -> str:
    """Return the path of a disk of a declared task, whose private disks are made again for each run."""
    return f"{DISKS}/{disk.disk}"
