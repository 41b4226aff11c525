"""Which file may be whose disk: by the way to it, its owner, the title of an earlier task and the operator's mark."""

import errno
import os
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.support.fakes.kernel import failing

from solo5_systemd.base.errors import HostError, InvalidRequestError, Solo5Error
from solo5_systemd.base.names import DeviceName
from solo5_systemd.base.paths import ANYONE, Way
from solo5_systemd.storage import owner as module
from solo5_systemd.storage.model import Disk, DiskRequest
from solo5_systemd.storage.owner import OFFERED, READ, READ_WRITE, check_title, give, may_open, read_title, write_title

SOLO5, EVE, BOB = 990, 1001, 1002
JOB = "job default/web"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "disk.img"
    path.write_bytes(bytes(4096))
    path.chmod(0o600)
    return path


Case = Callable[..., tuple[int, str]]


@pytest.fixture
def case(monkeypatch: pytest.MonkeyPatch, file: Path) -> Case:
    """What check_title returns of a file: by its owner, its title, and who can change the way to it."""

    def check(
        owner: int, *changers: int, had: str = "", roots: str = "", how: int = READ_WRITE, shared: bool = False
    ) -> tuple[int, str]:
        """Check it; `roots`: empty, `offered`, or `allocation`."""
        here = (str(file.parent),)
        way = Way(place=file, changers=frozenset(changers), is_shared=shared)
        monkeypatch.setattr(module, "way_of", lambda _: way)
        monkeypatch.setattr(module, "read_title", lambda *_: had)
        monkeypatch.setattr(module, "owner_at_rest", lambda *_: owner)
        request = DiskRequest(
            disk=DeviceName("storage"),
            path=str(file),
            roots=here if roots else (),
            allocation=here if roots == "allocation" else (),
            holder=JOB,
        )
        with file.open("r+b") as opened:
            return check_title(request, str(file), opened.fileno(), how)

    return check


def refused(error: type[Solo5Error], words: str, act: Callable[[], object]) -> None:
    with pytest.raises(error, match=words):
        act()


@pytest.mark.parametrize("owner", [0, SOLO5, EVE])
def test_a_way_of_roots_alone_is_the_operators_word(case: Case, owner: int) -> None:
    assert case(owner) == (0, ""), "and at rest the disk is root's"
    assert case(owner, had="job default/other") == (0, "")


def test_by_a_users_directory_there_are_that_users_files_alone(case: Case) -> None:
    assert case(EVE, EVE) == (EVE, ""), "it is hers again at rest"
    for owner in (0, SOLO5, BOB):
        refused(
            InvalidRequestError, f"file of user {owner}, by a directory that user {EVE} can", partial(case, owner, EVE)
        )
    refused(InvalidRequestError, f"that user {EVE} and user {BOB} can change", lambda: case(EVE, EVE, BOB))
    refused(InvalidRequestError, "that several users can change", lambda: case(EVE, EVE, ANYONE))


def test_where_others_can_add_names_a_disk_has_one_and_no_title(case: Case, file: Path) -> None:
    assert case(0, shared=True) == (0, "")
    refused(InvalidRequestError, "is a disk of another job", lambda: case(0, shared=True, had=JOB))
    file.with_name("second").hardlink_to(file)
    refused(InvalidRequestError, "has 2 names", lambda: case(0, shared=True))
    refused(InvalidRequestError, "has 2 names", lambda: case(EVE, EVE))
    assert case(0) == (0, ""), "only root can have made the second"
    file.with_name("second").unlink()
    assert case(0, shared=True, had=OFFERED, roots="offered") == (0, OFFERED), "an earlier task had it from there"


def test_in_an_allocation_another_jobs_disk_and_a_users_file_are_refused(case: Case) -> None:
    assert case(0, ANYONE, roots="allocation") == (0, JOB), "as Nomad writes it"
    for owner in (0, SOLO5, 777):
        assert case(owner, ANYONE, roots="allocation", had=JOB) == (0, JOB), "whatever its owner's number"
    refused(
        InvalidRequestError, "is a disk of another job", lambda: case(0, ANYONE, roots="allocation", had="job b/web")
    )
    refused(InvalidRequestError, "of another volume", lambda: case(0, ANYONE, roots="allocation", had="directory 7"))
    for owner in (EVE, SOLO5):
        refused(InvalidRequestError, f"belongs to user {owner}", lambda: case(owner, ANYONE, roots="allocation"))  # noqa: B023


def test_a_volume_holds_its_disks_by_its_directory(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    volume = str(file.parent)
    request = DiskRequest(disk=DeviceName("storage"), path=str(file), roots=(volume,), allocation=(volume,))
    monkeypatch.setattr(module, "ROOT", os.getuid())
    with file.open("r+b") as opened:
        owner, holder = check_title(request, str(file), opened.fileno(), READ_WRITE)
        assert holder == f"directory {file.parent.stat().st_ino}"


def test_of_offered_files_jobs_have_those_with_the_operators_mark(case: Case, file: Path) -> None:
    refused(HostError, f"cannot be written by user solo5.* Run: chown solo5 {file}", lambda: case(0, roots="offered"))
    refused(HostError, "cannot be read by user solo5", lambda: case(0, roots="offered", how=READ))
    assert case(SOLO5, roots="offered") == (SOLO5, OFFERED), "without a title, it is that user's again: the mark stays"
    assert case(0, roots="offered", had=OFFERED) == (0, OFFERED), "an earlier task had it"
    refused(HostError, "cannot be written by user solo5", lambda: case(0, roots="offered", had=JOB))
    refused(InvalidRequestError, "that user 1001 can change", lambda: case(SOLO5, EVE, roots="offered"))
    refused(HostError, "cannot be written by user solo5", lambda: case(EVE, EVE, roots="offered"))
    file.chmod(0o604)
    assert case(0, roots="offered", how=READ) == (0, OFFERED)


def test_an_access_control_list_is_a_mark(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    found = acl((1, 6, 0), (2, 6, SOLO5), (4, 0, 0), (16, 6, 0), (32, 0, 0))
    monkeypatch.setattr(os, "getxattr", lambda *_: found)
    assert case(0, roots="offered") == (0, OFFERED)


@pytest.mark.parametrize("place", [None, Path("/elsewhere")])
def test_a_path_that_leads_elsewhere_by_now_is_refused(
    case: Case, file: Path, monkeypatch: pytest.MonkeyPatch, place: Path | None
) -> None:
    way = place and Way(place=place, changers=frozenset())
    request = DiskRequest(disk=DeviceName("storage"), path=str(file))
    monkeypatch.setattr(module, "way_of", lambda _: way)
    with file.open("r+b") as opened, pytest.raises(HostError, match="was replaced just now"):
        check_title(request, str(file), opened.fileno(), READ_WRITE)


def test_a_title_is_the_inodes_and_a_copys_is_void(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[str, bytes] = {}
    monkeypatch.setattr(os, "setxattr", lambda _, name, value: kept.update({name: value}))
    monkeypatch.setattr(os, "getxattr", lambda _, name: kept[name])
    with file.open("r+b") as opened:
        status = os.fstat(opened.fileno())
        write_title(opened.fileno(), JOB)
        assert read_title(opened.fileno(), status) == JOB
        kept[module.TITLE] = b"1" + kept[module.TITLE]
        assert read_title(opened.fileno(), status) == ""


def test_a_file_system_without_titles_has_none(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for call in ("setxattr", "getxattr", "removexattr"):
        monkeypatch.setattr(os, call, failing(errno.ENOTSUP))
    with file.open("r+b") as opened:
        for holder in (JOB, ""):
            write_title(opened.fileno(), holder)
        assert read_title(opened.fileno(), os.fstat(opened.fileno())) == ""


def test_a_disk_that_gets_no_title_for_want_of_space_is_not_given(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another tenant could fill the file system, and move the disk into an allocation of its own."""

    given: list[object] = []
    monkeypatch.setattr(os, "setxattr", failing(errno.ENOSPC))
    monkeypatch.setattr(os, "chown", lambda *call: given.append(call))
    disk = Disk(disk=DeviceName("storage"), path=str(file), identity=(1, 1), holder=JOB)
    with file.open("r+b") as opened, pytest.raises(HostError, match="cannot be given .*: No space left on device"):
        give(disk, opened.fileno(), EVE)
    assert not given


# --- mode and access control list of a file ----------------------------------------------------------------------

USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER = 1, 2, 4, 8, 16, 32
NOBODY = 0xFFFFFFFF


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
    assert may_open(SOLO5, (SOLO5, 44), owner=owner, group=group, mode=mode, acl=None) is answer


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
    assert may_open(SOLO5, (SOLO5, 44), owner=0, group=0, mode=0o100600, acl=acl(*entries)) is answer


def test_the_owning_group_counts_among_the_groups_of_a_list() -> None:
    entries = (*BASE[::2], (GROUP_OBJ, 6, NOBODY), (MASK, 6, NOBODY))
    assert may_open(SOLO5, (SOLO5, 44), owner=0, group=44, mode=0o100660, acl=acl(*entries))
    assert not may_open(SOLO5, (SOLO5, 44), owner=0, group=45, mode=0o100660, acl=acl(*entries))
