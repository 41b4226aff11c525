"""Private copies: of what may be read, beside other readers, and with nothing left after a failure."""

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fast.storage.conftest import disk_of
from tests.support.fakes.kernel import failing

from solo5_systemd.base.errors import HostError, InvalidRequestError, TakenError
from solo5_systemd.base.names import DeviceName
from solo5_systemd.settings.node_limits import OPERATOR
from solo5_systemd.storage import private_disks
from solo5_systemd.storage.backing_files import ImageFiles, inspect
from solo5_systemd.storage.locks import lock, lock_shared, remove_stale
from solo5_systemd.storage.model import Disk, DiskRequest


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    path = tmp_path / "golden"
    path.write_bytes(b"golden".ljust(4096, b"\0"))
    path.chmod(0o644)
    return path


async def made_from(disks: ImageFiles, path: Path) -> Disk:
    made, created = await disks.make(request(path), await disks.inspect(request(path), OPERATOR), OPERATOR)
    assert not created
    return made


def request(path: Path, roots: tuple[str, ...] = ()) -> DiskRequest:
    return DiskRequest(disk=DeviceName("storage"), path=str(path), private=True, roots=roots)


async def test_many_copy_at_a_time_and_none_while_a_task_may_write(golden: Path, tmp_path: Path) -> None:
    disks, original = ImageFiles(), disk_of(golden)
    readers = [lock_shared(original) for _ in range(3)]
    made = await made_from(disks, golden)
    assert Path(made.path).stat().st_mode & 0o777 == 0o600
    await disks.release([made])
    with pytest.raises(TakenError, match="is in use by another task"):
        lock([original])
    remove_stale()
    with pytest.raises(TakenError, match="is in use by another task"):
        lock([original])
    for each in readers:
        os.close(each)
    writer = lock([original], task="web")
    with pytest.raises(TakenError, match="is in use by another task"):
        await made_from(disks, golden)
    os.close(writer)
    os.close(lock_shared(original))
    assert not list((tmp_path / "copies").iterdir()) if (tmp_path / "copies").exists() else True


async def test_what_was_admitted_is_what_is_copied(golden: Path, tmp_path: Path) -> None:
    disks = ImageFiles()
    planned = await disks.inspect(request(golden), OPERATOR)
    assert (planned.size, planned.copied) == (4096, golden.stat().st_blocks * 512)
    for less in (replace(planned, size=2048), replace(planned, copied=0)):
        with pytest.raises(HostError, match="bytes to copy by now: expected .*, as it was checked"):
            await disks.make(request(golden), less, OPERATOR)
    assert not list((tmp_path / "copies").iterdir())


async def test_shared_blocks_are_not_limited(golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("can_share", "share"):
        monkeypatch.setattr(private_disks, name, lambda *_: True)
    disks = ImageFiles()
    assert (await disks.inspect(request(golden), OPERATOR)).copied == 0
    made = await made_from(disks, golden)
    assert made.is_private
    await disks.release([made])


async def test_a_full_file_system_is_one_sentence(
    golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private_disks, "copy_data", failing(errno.ENOSPC))
    with pytest.raises(HostError, match="cannot be copied to .*copies: No space left on device"):
        await made_from(ImageFiles(), golden)
    assert not list((tmp_path / "copies").iterdir())


def test_a_job_copies_what_user_solo5_may_read(golden: Path, tmp_path: Path) -> None:
    golden.chmod(0o600)
    with pytest.raises(HostError, match="cannot be read by user solo5: expected read permission"):
        inspect(request(golden, (str(tmp_path),)))
    assert inspect(request(golden)).planned, "root at a terminal copies any file"


@pytest.mark.parametrize("path", ["/dev/null", "/"])
def test_only_a_regular_file_is_copied(path: str) -> None:
    with pytest.raises(InvalidRequestError, match="cannot be copied for one run: expected a regular file"):
        inspect(request(Path(path)))
