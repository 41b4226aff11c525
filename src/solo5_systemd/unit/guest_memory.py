"""The division of a task's memory between guest and tender, and the least and the most that a guest can have."""

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.base.names import Target
from solo5_systemd.image.manifest import Manifest
from solo5_systemd.task.workload import MIB

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
    return RING_OVERHEAD if manifest.target is Target.HVT and manifest.nics else 0


def least_guest_memory(manifest: Manifest) -> int:
    """Return the smallest guest memory in MiB with which the image boots."""
    least = max(MINIMUM[manifest.target], -(-manifest.min_memory // MIB))
    return least + least % HVT_GRANULE if manifest.target is Target.HVT else least


def guest_memory(allotment: int, manifest: Manifest, archives: int = 0) -> int:
    """Return the value of --mem, in MiB.

    Raises:
        InvalidRequestError: too little for the image to boot, or more than the tender supports.
    """
    shown = f"{allotment} bytes" if allotment % MIB else f"{allotment // MIB}M"  # 64 is a mistake for 64M
    shared = max(0, (allotment - archives) // MIB - _ring(manifest))
    archived = -(-archives // MIB)
    mib = max(0, min(shared - TENDER_OVERHEAD, shared * GUEST_PER_OVERHEAD // (GUEST_PER_OVERHEAD + 1)))
    least = least_guest_memory(manifest)
    if manifest.target is Target.HVT:
        mib -= mib % HVT_GRANULE
        if mib > HVT_MAXIMUM:
            raise InvalidRequestError(
                f"memory {shown} leaves the guest {mib} MiB: hvt offers at most {HVT_MAXIMUM}.",
                f"Ask for {HVT_MAXIMUM + overhead(manifest, HVT_MAXIMUM)}M or less, or use an spt image.",
            )
    if mib < least:
        extra = overhead(manifest, least)
        raise InvalidRequestError(
            f"memory {shown} leaves the guest {mib} MiB of the {least} that this image needs "
            f"({extra} MiB are the tender's{f', {archived} are archives' if archived else ''}).",
            f"Ask for {least + extra + archived}M or more: that is the size of the image; {RUNTIME_NEEDS_MORE}.",
        )
    return mib
