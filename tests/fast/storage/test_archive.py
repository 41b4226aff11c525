"""Archives, as values: names, headers, limits."""

from dataclasses import replace

import pytest

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.base.names import DeviceName
from solo5_systemd.storage.archive import (
    ARCHIVE_MAX,
    ENTRIES_MAX,
    archive_disk,
    check_entry,
    check_total,
    credential_name,
    member,
    size_of,
)
from solo5_systemd.storage.model import ArchiveFormat, ArchiveRequest, Backing, Disk

DISK = DeviceName("config")


@pytest.mark.parametrize(
    "text, name",
    [("local/app.toml", "local/app.toml"), ("/etc/x", "etc/x"), ("./a//b/", "a/b"), ("secrets/", "secrets")],
)
def test_the_name_of_a_member_is_its_path(text: str, name: str) -> None:
    assert member(text, "/x") == (name, "/x")


@pytest.mark.parametrize("text", ["", ".", "/", "..", "../x", "a/../../x", "a\0b"])
def test_a_path_without_a_name_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="cannot be a name in an archive"):
        member(text, "/x")


@pytest.mark.parametrize("name", ["", ".x", "a/b", "a b", "a\n", "x" * 256, "-x"])
def test_the_name_of_a_credential_is_a_file_name(name: str) -> None:
    with pytest.raises(InvalidRequestError, match="credential name .* is not usable"):
        credential_name(name)
    assert credential_name("db.password") == "db.password"


def test_paths_of_members_have_a_limit() -> None:
    members = tuple((f"local/{number:0100}", f"/x/local/{number:0100}") for number in range(80))
    with pytest.raises(InvalidRequestError, match="its archive has 80 paths, which are 18000 bytes: expected at most"):
        archive_disk(DISK, ArchiveRequest(members=members))


@pytest.mark.parametrize(
    ("size", "sector", "format", "of_archive"),
    [
        *((1, 4096, ArchiveFormat.TAR, 4096), (512, 512, ArchiveFormat.TAR, 2048)),
        *((1, 512, ArchiveFormat.TAR, 2048), (1, 512, ArchiveFormat.RAW, 512)),
    ],
)
def test_sizes_are_whole_sectors(size: int, sector: int, format: ArchiveFormat, of_archive: int) -> None:  # noqa: A002
    request = archive_disk(DISK, ArchiveRequest(members=(member("a", "/a"),), format=format), sector_size=sector)
    assert size_of(request, [size]) == of_archive


def test_limits() -> None:
    request = archive_disk(DISK, ArchiveRequest(members=(member("a", "/a"),)))
    check_entry(request, ENTRIES_MAX, ARCHIVE_MAX)
    with pytest.raises(InvalidRequestError, match="more than 4096 entries"):
        check_entry(request, ENTRIES_MAX + 1, 0)
    with pytest.raises(InvalidRequestError, match="more than 16 MiB"):
        check_entry(request, 1, ARCHIVE_MAX + 1)


def test_archives_of_a_task_are_limited_in_all() -> None:
    half = Disk(disk=DISK, path="/x", identity=(1, 1), size=ARCHIVE_MAX // 2)
    half = replace(half, backing=Backing.ARCHIVE)
    other = replace(half, backing=Backing.FILE)
    check_total([half, other, half, other])
    with pytest.raises(InvalidRequestError, match="archives of disks .config, more. have 16777728 bytes"):
        check_total([half, other, replace(half, disk=DeviceName("more"), size=half.size + 512)])


def test_an_archive_has_files_and_each_once() -> None:
    with pytest.raises(InvalidRequestError, match="its archive has no file"):
        archive_disk(DISK, ArchiveRequest())
    with pytest.raises(InvalidRequestError, match="its archive has 'a' twice"):
        archive_disk(DISK, ArchiveRequest(members=(member("a", "/a"), member("./a", "/b"))))
    stripped = tuple(member(path, path, strip=True) for path in ("/a", "/b"))
    with pytest.raises(InvalidRequestError, match="has strip and 2 paths: expected one"):
        archive_disk(DISK, ArchiveRequest(members=stripped))
    assert archive_disk(DISK, ArchiveRequest(credential="x")).archive == ArchiveRequest(credential="x")
