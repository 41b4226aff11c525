import struct

import pytest

from solo5_systemd.storage.owner import may_open

USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER = 1, 2, 4, 8, 16, 32
NOBODY = 0xFFFFFFFF
SOLO5 = 990, (990, 44)


def acl(*entries: tuple[int, int, int]) -> bytes:
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


@pytest.mark.parametrize(
    "owner, group, mode, answer",
    [
        (990, 0, 0o100600, True),
        (990, 0, 0o100400, False),
        (990, 990, 0o100066, False),
        (0, 990, 0o100660, True),
        (0, 44, 0o060660, True),
        (0, 990, 0o100646, False),
        (0, 0, 0o100666, True),
        (0, 0, 0o100664, False),
        (0, 0, 0o100662, False),
        (0, 6, 0o060660, False),
    ],
)
def test_the_first_class_of_the_mode_that_fits_decides(owner: int, group: int, mode: int, *, answer: bool) -> None:
    assert may_open(*SOLO5, owner=owner, group=group, mode=mode, acl=None) is answer


BASE = ((USER_OBJ, 6, NOBODY), (GROUP_OBJ, 0, NOBODY), (OTHER, 0, NOBODY))


@pytest.mark.parametrize(
    "entries, answer",
    [
        (BASE, False),
        ((*BASE, (USER, 6, 990), (MASK, 6, NOBODY)), True),
        ((*BASE, (USER, 7, 990), (MASK, 7, NOBODY)), True),
        ((*BASE, (USER, 6, 990), (MASK, 4, NOBODY)), False),
        ((*BASE, (USER, 4, 990), (GROUP, 6, 44), (MASK, 6, NOBODY)), False),
        ((*BASE, (USER, 6, 991), (MASK, 6, NOBODY)), False),
        ((*BASE, (GROUP, 6, 44), (MASK, 6, NOBODY)), True),
        ((*BASE, (GROUP, 4, 990), (GROUP, 6, 44), (MASK, 6, NOBODY)), True),
        ((*BASE, (GROUP, 6, 44), (MASK, 2, NOBODY)), False),
        ((*BASE[:2], (OTHER, 6, NOBODY), (GROUP, 4, 44), (MASK, 6, NOBODY)), False),
        ((*BASE[:2], (OTHER, 6, NOBODY), (MASK, 0, NOBODY)), True),
    ],
)
def test_an_access_control_list_is_read_as_the_kernel_reads_it(
    entries: tuple[tuple[int, int, int], ...], *, answer: bool
) -> None:
    assert may_open(*SOLO5, owner=0, group=0, mode=0o100600, acl=acl(*entries)) is answer


def test_the_owning_group_counts_among_the_groups_of_a_list() -> None:
    entries = (*BASE[::2], (GROUP_OBJ, 6, NOBODY), (MASK, 6, NOBODY))
    assert may_open(*SOLO5, owner=0, group=44, mode=0o100660, acl=acl(*entries))
    assert not may_open(*SOLO5, owner=0, group=45, mode=0o100660, acl=acl(*entries))
