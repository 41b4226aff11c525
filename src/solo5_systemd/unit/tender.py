"""The tender's command line, and the division of a task's memory between guest and tender."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.base.names import Target
from solo5_systemd.image.manifest import DeviceKind, ImageFacts, Manifest
from solo5_systemd.network.model import Lease
from solo5_systemd.storage.model import Disk
from solo5_systemd.task.workload import MIB


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


TENDER_OVERHEAD = 8
"""MiB that tender and kernel need for a small guest besides its memory: VM, stacks, page tables."""

GUEST_PER_OVERHEAD = 64
"""MiB of guest memory per MiB of overhead, for guests above 512 MiB: page tables grow with the memory that they map.

hvt's memory is shared, hence in pages of 4 KiB: measured 6 MiB per GiB (Linux 6.12) for page tables, second-level page
tables and the page cache's index. The rest is for kernels with shadow page tables, which take more.
"""

RING_OVERHEAD = 2
"""MiB of hvt's network ring, allocated outside of the guest's memory if there is a NIC (Solo5 0.12.1)."""

HVT_GRANULE = 2
"""MiB; hvt rounds --mem down to a multiple and warns on stderr, so it gets a multiple."""

HVT_MAXIMUM = 4096
"""MiB; hvt's limit on x86-64."""

RUNTIME_NEEDS_MORE = "its runtime needs more, OCaml 5 about 4M"
"""What no note of an image has. OCaml 5.3 reserves 2 MiB for its minor heap, and starts in twice as much."""

MINIMUM = {Target.HVT: 4, Target.SPT: 2}
"""MiB below which no image boots."""


def overhead(manifest: Manifest, guest: int) -> int:
    """Return the MiB of a task's memory that its guest of `guest` MiB does not see."""
    return max(TENDER_OVERHEAD, -(-guest // GUEST_PER_OVERHEAD)) + _ring(manifest)


def _ring(manifest: Manifest) -> int:
    return RING_OVERHEAD if manifest.target is Target.HVT and manifest.names(DeviceKind.NET_BASIC) else 0


def least_guest_memory(facts: ImageFacts) -> int:
    """Return the smallest guest memory in MiB with which the image boots."""
    target = facts.manifest.target
    least = max(MINIMUM[target], -(-facts.min_memory // MIB))
    return least + least % HVT_GRANULE if target is Target.HVT else least


def guest_memory(allotment: int, facts: ImageFacts, archives: int = 0) -> int:
    """Return the value of --mem, in MiB.

    Args:
        allotment: bytes of the task.
        archives: bytes of it that the task's archives take.

    Raises:
        InvalidRequestError: too little for the image to boot, or more than the tender supports.
    """
    shared = max(0, (allotment - archives) // MIB - _ring(facts.manifest))
    archived = -(-archives // MIB)
    mib = max(0, min(shared - TENDER_OVERHEAD, shared * GUEST_PER_OVERHEAD // (GUEST_PER_OVERHEAD + 1)))
    least = least_guest_memory(facts)
    if facts.manifest.target is Target.HVT:
        mib -= mib % HVT_GRANULE
        if mib > HVT_MAXIMUM:
            raise InvalidRequestError(
                f"memory {allotment // MIB}M leaves the guest {mib} MiB: hvt offers at most {HVT_MAXIMUM}.",
                f"Ask for {HVT_MAXIMUM + overhead(facts.manifest, HVT_MAXIMUM)}M or less, or use an spt image.",
            )
    if mib < least:
        extra = overhead(facts.manifest, least)
        raise InvalidRequestError(
            f"memory {allotment // MIB}M leaves the guest {mib} MiB of the {least} that this image needs "
            f"({extra} MiB are the tender's{f', {archived} are archives' if archived else ''}).",
            f"Ask for {least + extra + archived}M or more: that is the size of the image; {RUNTIME_NEEDS_MORE}.",
        )
    return mib


def command_line(
    *,
    tender: str,
    image: str,
    memory_mib: int,
    leases: Iterable[Lease],
    disks: Iterable[Disk],
    disk_path: Callable[[Disk], str],
    arguments: Iterable[str],
) -> tuple[str, ...]:
    """Return the tender's argv.

    Args:
        image: path of the image, as the tender sees it.
        disk_path: returns the path of a disk, as the tender sees it.
    """
    # --mem last: the tender would parse a device option that follows it twice.
    return (tender, *device_options(memory_mib, leases, disks, disk_path), "--", image, *arguments)


def device_options(
    memory_mib: int, leases: Iterable[Lease], disks: Iterable[Disk], disk_path: Callable[[Disk], str]
) -> tuple[str, ...]:
    """Return the tender's options; with the disks of `sandbox_path`, none has a blank or a quote."""
    argv = []
    for lease in leases:
        # Always with a MAC, else the tender uses one that the image may preset.
        argv += [f"--net:{lease.nic}={lease.tap}", f"--net-mac:{lease.nic}={lease.mac}"]
    for disk in disks:
        argv += [
            f"--block:{disk.disk}={disk_path(disk)}",
            f"--block-sector-size:{disk.disk}={disk.sector_size}",
        ]
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
