"""The disks of the benchmark are what its figures call them."""

from tests.bench import disks

from solo5_systemd.storage.model import ArchiveFormat


def test_each_kind_of_disk_is_measured_once() -> None:
    named, private, archive = disks.requests().values()
    assert (named.name, named.private, private.name, private.private) == ("bench", False, "bench", True)
    assert archive.archive is not None
    assert [each.path for each in archive.archive.members] == [str(disks.FILE)]
    assert archive.archive.format is ArchiveFormat.TAR
    assert {request.disk for request in (named, private, archive)} == {disks.STORAGE}
