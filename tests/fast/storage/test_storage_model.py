import pytest
from tests.support.fakes.refusal import refusal

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.base.names import DeviceName
from solo5_systemd.storage.model import DiskRequest, check_size, sector_size


def request(path: str = "/srv/disk", sector_size: int | None = None) -> DiskRequest:
    return DiskRequest(disk=DeviceName("storage"), path=path, sector_size=sector_size)


@pytest.mark.parametrize("asked, used", [(None, 512), (512, 512), (4096, 4096), (32768, 32768)])
def test_a_sector_size_that_tenders_take_is_used(asked: int | None, used: int) -> None:
    assert sector_size(request(sector_size=asked)) == used


@pytest.mark.parametrize("size", [-512, 0, 1, 256, 513, 1000, 65536, 66048])
def test_a_sector_size_that_tenders_refuse_or_misread_is_refused(size: int) -> None:
    with pytest.raises(InvalidRequestError, match=f"sector size {size} is not supported: expected a power of two"):
        sector_size(request(sector_size=size))


@pytest.mark.parametrize(
    "size, sector, is_whole",
    [
        *((512, None, True), (1 << 40, None, True), (8192, 4096, True), (0, None, False)),
        *((511, None, False), (513, None, False), (512, 4096, False), (4608, 4096, False)),
    ],
)
def test_a_size_is_one_of_whole_sectors(size: int, sector: int | None, *, is_whole: bool) -> None:
    found = refusal(check_size, request(sector_size=sector), size)
    assert (found == "") is is_whole
    assert is_whole or f"has {size} bytes: expected one or more whole sectors" in found
