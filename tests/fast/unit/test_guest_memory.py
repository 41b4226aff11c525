import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.fakes.images import manifest

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.base.names import Target
from solo5_systemd.task.workload import MIB
from solo5_systemd.unit.guest_memory import HVT_GRANULE, HVT_MAXIMUM, guest_memory, least_guest_memory, overhead

HVT, SPT = Target.HVT, Target.SPT


@pytest.mark.parametrize(
    "target, nics, allotment, guest",
    [
        (HVT, "", 128, 120),
        (HVT, "", 129, 120),  # hvt's granule is two
        (HVT, "net", 128, 118),  # its ring is not the guest's
        (HVT, "", 12, 4),
        (HVT, "", 520, 512),
        (HVT, "", 1024, 1008),  # the kernel's tables grow with the guest
        (HVT, "net", 1026, 1008),
        (HVT, "", HVT_MAXIMUM + 64, HVT_MAXIMUM),
        (HVT, "", HVT_MAXIMUM + 66, HVT_MAXIMUM),
        (SPT, "", 129, 121),
        (SPT, "net", 129, 121),
        (SPT, "", 10, 2),
        (SPT, "", 6500, 6400),
    ],
)
def test_the_guest_gets_the_allotment_less_the_overhead(target: Target, nics: str, allotment: int, guest: int) -> None:
    assert guest_memory(allotment * MIB, manifest(target, nics=nics)) == guest


@pytest.mark.parametrize(
    "target, allotment, words",
    [
        (HVT, 64 / MIB, "memory 64 bytes leaves the guest 0 MiB of the 4 that this image needs (8 MiB are the"),
        (HVT, 11, "memory 11M leaves the guest 2 MiB of the 4"),
        (SPT, 9, "memory 9M leaves the guest 1 MiB of the 2"),
        (HVT, 4163, "memory 4163M leaves the guest 4098 MiB: hvt offers at most 4096."),
    ],
)
def test_memory_out_of_bounds_is_refused(target: Target, allotment: float, words: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        guest_memory(int(allotment * MIB), manifest(target))
    assert str(caught.value).startswith(words)


@pytest.mark.parametrize(
    "target, end, least",
    [(SPT, 0, 2), (SPT, 3 * MIB, 4), (HVT, 0, 4), (HVT, 4 * MIB, 6), (HVT, 6 * MIB, 8), (SPT, 6 * MIB, 7)],
)
def test_an_image_needs_room_for_all_its_segments_and_a_heap(target: Target, end: int, least: int) -> None:
    assert least_guest_memory(manifest(target, end=end)) == least


@given(st.sampled_from(Target), st.integers(0, 64 * MIB), st.sampled_from(["", "net"]))
def test_the_advised_least_allotment_is_enough_and_one_mebibyte_less_is_not(
    target: Target, end: int, nics: str
) -> None:
    image = manifest(target, nics=nics, end=end)
    guest = least_guest_memory(image)
    least = (guest + overhead(image, guest)) * MIB
    assert guest_memory(least, image) * MIB >= image.min_memory
    with pytest.raises(InvalidRequestError, match=f"Ask for {least // MIB}M or more"):
        guest_memory(least - 1, image)


@given(st.sampled_from(Target), st.integers(14, HVT_MAXIMUM + 66), st.sampled_from(["", "net"]))
def test_guest_and_overhead_fill_the_allotment(target: Target, allotment: int, nics: str) -> None:
    image = manifest(target, nics=nics)
    guest = guest_memory(allotment * MIB, image)
    larger = guest + (HVT_GRANULE if target is HVT else 1)
    assert target is not HVT or guest % HVT_GRANULE == 0, "it need not round"
    assert guest + overhead(image, guest) <= allotment < larger + overhead(image, larger)
