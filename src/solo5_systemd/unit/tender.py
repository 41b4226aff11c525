"""The tender's command line, and how an allotment of memory is shared between guest and tender."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from solo5_systemd.block.model import Disk
from solo5_systemd.errors import InvalidRequestError
from solo5_systemd.image.manifest import DeviceKind, ImageFacts, Manifest, Target
from solo5_systemd.network.model import Lease
from solo5_systemd.workload import MIB


@dataclass(frozen=True, kw_only=True)
class Tender:
    """A tender's program, as its own --version has it.

    Attributes:
        loads: what its loader maps besides it: each file, or `LIBRARIES` where these are not known.
        loads_because: why they are not known; empty: they are.
    """

    path: str
    target: Target
    version: str
    abi_version: int
    loads: tuple[str, ...] = ()
    loads_because: str = ""


LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
"""Where a loader finds everything that it may map: its built-in search path, and the loader itself."""


TENDER_OVERHEAD = 8
"""MiB that tender and kernel hold for a small guest besides its memory: the VM, stacks, page tables."""

GUEST_PER_OVERHEAD = 64
"""MiB of guest memory for each of overhead, where that is more: the kernel's tables grow with what they describe.

hvt's memory is shared, hence in pages of 4 KiB: measured 6 MiB for each GiB (Linux 6.12), of page tables, the guest's
second ones, and the page cache's index. The rest is for kernels that shadow a guest's page tables, which takes more.
"""

RING_OVERHEAD = 2
"""MiB of hvt's network ring, allocated beside the guest's memory where there is a NIC (Solo5 0.12.1)."""

HVT_GRANULE = 2
"""hvt rounds --mem down to this many MiB, saying so on stderr; we round first, so that it stays silent."""

HVT_MAXIMUM = 4096
"""MiB, hvt's ceiling on x86-64."""

MINIMUM = {Target.HVT: 4, Target.SPT: 2}
"""MiB below which no image boots."""


def overhead(manifest: Manifest, guest: int) -> int:
    """MiB of the allotment that a guest of so many MiB does not see."""
    return max(TENDER_OVERHEAD, -(-guest // GUEST_PER_OVERHEAD)) + _ring(manifest)


def _ring(manifest: Manifest) -> int:
    return RING_OVERHEAD if manifest.target is Target.HVT and manifest.names(DeviceKind.NET_BASIC) else 0


def least_guest_memory(facts: ImageFacts) -> int:
    """MiB below which the image does not boot."""
    target = facts.manifest.target
    least = max(MINIMUM[target], -(-facts.least_memory // MIB))
    return least + least % HVT_GRANULE if target is Target.HVT else least


def guest_memory(allotment: int, facts: ImageFacts) -> int:
    """The value of --mem, in MiB.

    Args:
        allotment: bytes, the unit's whole MemoryMax=.
        facts: the image's.

    Raises:
        InvalidRequestError: too little for the image to boot, or more than the tender offers.
    """
    shared = max(0, allotment // MIB - _ring(facts.manifest))
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
            f"({extra} MiB are the tender's).",
            f"Ask for {least + extra}M or more.",
        )
    return mib


def command_line(
    *,
    tender: str,
    image: str,
    memory_mib: int,
    leases: Iterable[Lease],
    disks: Iterable[Disk],
    place: Callable[[Disk], str],
    arguments: Iterable[str],
) -> tuple[str, ...]:
    """The whole argv.

    The MAC is always given, since a tender otherwise honours one preset in the image; --mem comes last of the
    options, since a device option right behind it would be tried twice.
    """
    argv = [tender]
    for lease in leases:
        argv += [f"--net:{lease.nic}={lease.tap}", f"--net-mac:{lease.nic}={lease.mac}"]
    for disk in disks:
        argv += [
            f"--block:{disk.disk}={place(disk)}",
            f"--block-sector-size:{disk.disk}={disk.sector_size}",
        ]
    return (*argv, f"--mem={memory_mib}", "--", image, *arguments)


def sandbox_path(disk: Disk) -> str:
    """Where a service sees its disk: a name free of blanks, whatever the file is called outside."""
    return f"/run/solo5-disks/{disk.disk}"
