"""The plugin `solo5-disk` on a file system: what it creates, keeps, refuses and deletes."""

import errno
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fast.storage.conftest import in_bytes

from solo5_systemd.base.errors import HostError, InvalidRequestError, SettingsError, TakenError
from solo5_systemd.base.locks import LockedError, closing, lock_directory
from solo5_systemd.base.names import DeviceName
from solo5_systemd.base.paths import identity
from solo5_systemd.host_volume import plugin
from solo5_systemd.host_volume.request import GRAIN, CreateRequest
from solo5_systemd.settings.node_limits import Limits, Resource, Share, tenant
from solo5_systemd.settings.solo5_toml import Settings
from solo5_systemd.storage import block_devices, locks, quotas
from solo5_systemd.storage.locks import lock
from solo5_systemd.storage.model import Disk

ID = "3fa85f64-5717-4562-b3fc-2c963f66afa6"


@pytest.fixture
def volumes(tmp_path: Path) -> Path:
    return tmp_path / "host_volumes"


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(plugin, "STATE", tmp_path / "state")
    monkeypatch.setattr(quotas, "CLAIMS", tmp_path / "claims")
    monkeypatch.setattr(plugin, "ENDED_TIMEOUT_S", 0.05)
    set_limits(monkeypatch)
    return tmp_path / "state"


def set_limits(
    monkeypatch: pytest.MonkeyPatch, limits: Limits | None = None, quotas: dict[str, int] | None = None
) -> None:
    monkeypatch.setattr(plugin, "read_settings", in_bytes(quotas or {}, limits))


def request(volumes: Path, size: int = 2 * GRAIN, size_max: int | None = None, *, full: bool = False) -> CreateRequest:
    return CreateRequest(
        name="data",
        directory=str(volumes / ID),
        size=size,
        size_max=size_max,
        preallocate=full,
        tenant=tenant("shop", ""),
    )


def removal(volumes: Path) -> tuple[str, str]:
    return "data", str(volumes / ID)


@pytest.mark.parametrize("full", [True, False])
def test_create_makes_an_image_that_only_root_may_read(volumes: Path, *, full: bool) -> None:
    assert plugin.create(request(volumes, full=full)) == 2 * GRAIN
    image = (volumes / ID / "disk.img").stat()
    assert (image.st_size, image.st_blocks * 512 >= 2 * GRAIN, image.st_mode & 0o7777) == (2 * GRAIN, full, 0o600)
    assert (volumes / ID).stat().st_mode & 0o7777 == 0o700
    assert [p.name for p in (volumes / ID).iterdir()] == ["disk.img"]


@pytest.mark.parametrize("full", [True, False])
def test_a_volume_leaves_half_of_the_file_system_to_other_namespaces(volumes: Path, state: Path, *, full: bool) -> None:
    """Also a sparse one: its guest may write all of it."""
    status = os.statvfs(volumes.parent)
    half = status.f_blocks * status.f_frsize // 2
    with pytest.raises(InvalidRequestError, match=f"bytes of disks in .*the limit of namespace 'shop' is {half}, of"):
        plugin.create(request(volumes, half + GRAIN, full=full))
    assert not list(volumes.iterdir())


@pytest.mark.parametrize("full", [True, False])
def test_a_volume_leaves_the_reserve_and_what_others_may_write(
    volumes: Path, monkeypatch: pytest.MonkeyPatch, *, full: bool
) -> None:
    free = os.statvfs(volumes.parent).f_bavail * os.statvfs(volumes.parent).f_frsize
    set_limits(monkeypatch, Limits(reserve_mb=(free >> 20) - 100))
    plugin.create(request(volumes, 60 << 20))
    other = replace(request(volumes, 60 << 20, full=full), directory=str(volumes / ID.replace("3", "4")))
    with pytest.raises(HostError, match=f"can take {60 << 20} bytes of .*, {60 << 20} are promised to others, and"):
        plugin.create(other)
    assert [path.name for path in volumes.iterdir()] == [ID]
    plugin.delete(*removal(volumes))
    assert plugin.create(other) == 60 << 20, "what is gone takes nothing"


def test_volumes_of_a_namespace_have_its_limit_together(volumes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_limits(monkeypatch, Limits(namespace=Share(amounts={Resource.DISKS: 3 * GRAIN})))
    made = replace(request(volumes), directory=str(volumes / ID.replace("3", "4")))
    plugin.create(made)
    with pytest.raises(TakenError, match=f"expected at most {GRAIN}, since the limit of namespace 'shop'"):
        plugin.create(request(volumes))
    plugin.create(replace(request(volumes), tenant=tenant("bank", "")))
    with pytest.raises(TakenError, match=f"would have {2 * GRAIN} bytes of disks in"):
        plugin.create(replace(made, size=4 * GRAIN))
    assert plugin.create(replace(made, size=3 * GRAIN)) == 3 * GRAIN


def test_a_volume_beyond_the_quota_is_refused_and_one_that_exists_is_kept(
    volumes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_limits(monkeypatch, quotas={str(volumes): 3 * GRAIN})
    assert plugin.create(request(volumes)) == 2 * GRAIN
    other = replace(request(volumes), name="other", directory=str(volumes / ID.replace("3", "4")))
    words = (
        f"volume other would take {2 * GRAIN} bytes: expected at most {GRAIN}, since the quota of {volumes} is "
        f"{3 * GRAIN} bytes and the files in it have {2 * GRAIN}"
    )
    with pytest.raises(HostError, match=re.escape(words)):
        plugin.create(other)
    assert [path.name for path in volumes.iterdir()] == [ID]
    with pytest.raises(HostError, match=f"volume data would take {2 * GRAIN} bytes: expected at most {GRAIN}"):
        plugin.create(request(volumes, 4 * GRAIN))
    assert plugin.create(request(volumes, 3 * GRAIN)) == 3 * GRAIN, "up to the quota"

    def invalid() -> Settings:
        raise SettingsError("/etc/solo5/x.toml is wrong.")

    monkeypatch.setattr(plugin, "read_settings", invalid)
    assert plugin.create(request(volumes)) == 3 * GRAIN, "nothing is made, nothing is read"
    with pytest.raises(SettingsError):
        plugin.create(other)
    assert [path.name for path in volumes.iterdir()] == [ID]


def test_repeated_create_keeps_the_data(volumes: Path, state: Path) -> None:
    plugin.create(request(volumes))
    (volumes / ID / "disk.img").write_bytes(b"kept".ljust(2 * GRAIN))
    (state / ID).unlink()  # as after a kill before the record
    assert plugin.create(request(volumes)) == 2 * GRAIN
    assert (state / ID).read_text() == str(volumes / ID)
    assert plugin.create(request(volumes, GRAIN)) == 2 * GRAIN, "it is not made smaller"
    assert plugin.create(request(volumes, 3 * GRAIN)) == 3 * GRAIN, "it grows"
    assert (volumes / ID / "disk.img").read_bytes().startswith(b"kept ")


def test_lost_image_is_not_replaced_by_a_blank_one(volumes: Path) -> None:
    """As on a file system that is not mounted when the agent starts."""
    plugin.create(request(volumes))
    (volumes / ID / "disk.img").unlink()
    (volumes / ID).rmdir()
    with pytest.raises(HostError, match="volume data has lost its disk image"):
        plugin.create(request(volumes))
    assert not (volumes / ID).exists()
    plugin.delete(*removal(volumes))
    assert plugin.create(request(volumes)) == 2 * GRAIN, "deleted, it may be created anew"


def test_volume_that_was_created_elsewhere_is_refused(volumes: Path, tmp_path: Path) -> None:
    plugin.create(request(volumes))
    with pytest.raises(HostError, match=f"was created as {volumes}/{ID}: expected {tmp_path}/new/{ID}"):
        plugin.create(request(tmp_path / "new"))


def test_image_beyond_its_maximum_is_refused(volumes: Path) -> None:
    plugin.create(request(volumes))
    with pytest.raises(InvalidRequestError, match=f"has {2 * GRAIN} bytes: expected at most capacity_max {GRAIN}"):
        plugin.create(request(volumes, GRAIN, GRAIN))


PLANTS: Mapping[str, Callable[[Path, Path], object]] = {
    "link": lambda image, victim: image.symlink_to(victim),
    "hard link": lambda image, victim: image.hardlink_to(victim),
    "FIFO": lambda image, _victim: os.mkfifo(image),
    "directory": lambda image, _victim: image.mkdir(),
}


@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS)
def test_planted_image_is_neither_used_nor_followed(
    volumes: Path, tmp_path: Path, plant: Callable[[Path, Path], object]
) -> None:
    """Planted by a container that has the same volume."""
    victim = tmp_path / "victim"
    victim.write_text("victim")
    plugin.create(request(volumes))
    (volumes / ID / "disk.img").unlink()
    plant(volumes / ID / "disk.img", victim)
    with pytest.raises(InvalidRequestError, match="is no disk image"):
        plugin.create(request(volumes))
    plugin.delete(*removal(volumes))
    assert victim.read_text() == "victim"
    assert not (volumes / ID).exists()


@pytest.mark.parametrize("name", ["disk.img", "below/other.img"])
def test_delete_is_refused_while_a_task_has_a_file_of_it(volumes: Path, tmp_path: Path, name: str) -> None:
    plugin.create(request(volumes))
    file = volumes / ID / name
    file.parent.mkdir(exist_ok=True)
    file.touch()
    used = Disk(disk=DeviceName("d"), path=str(file), identity=identity(file.stat()))
    held = lock([used])
    with pytest.raises(TakenError, match=f"volume data: '{file}' is in use by another task"):
        plugin.delete(*removal(volumes))
    assert file.exists()
    os.close(held)
    plugin.delete(*removal(volumes))
    assert not (volumes / ID).exists()
    assert not [*locks.LOCKS.iterdir()], "a name in /run for each file, of which others can make any number"
    plugin.delete(*removal(volumes))


def test_delete_takes_no_more_of_run_than_a_volume_of_disks_needs(
    volumes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin, "FILES_MAX", 2)
    plugin.create(request(volumes))
    for name in "ab":
        (volumes / ID / name).touch()
    with pytest.raises(HostError, match="has more than 2 files to be locked. Stop its jobs, run rm -r "):
        plugin.delete(*removal(volumes))
    assert not locks.LOCKS.exists()


def test_delete_is_refused_while_a_loop_device_has_a_file_of_it(
    volumes: Path, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin.create(request(volumes))

    def attached(disk: Disk) -> None:
        raise TakenError(f"disk {disk.disk}: {disk.path!r} is attached to loop0: expected none.")

    monkeypatch.setattr(block_devices, "check_unused", attached)
    with pytest.raises(TakenError, match=f"volume data: '{volumes / ID}/disk.img' is attached to loop0"):
        plugin.delete(*removal(volumes))
    assert (volumes / ID / "disk.img").exists()


def test_delete_follows_no_link(volumes: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    volumes.mkdir()
    (volumes / ID).symlink_to(tmp_path / "precious")
    with pytest.raises(HostError, match="is a symbolic link: expected a directory"):
        plugin.delete(*removal(volumes))
    assert (tmp_path / "precious").exists()


@pytest.mark.parametrize("error", [RecursionError(), OSError(errno.EMFILE, "Too many open files")])
def test_directories_within_directories_are_one_sentence(
    volumes: Path, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job with the volume can make any number of them; which error Python raises depends on its version."""

    def refused(_: Path) -> None:
        raise error

    plugin.create(request(volumes))
    monkeypatch.setattr(shutil, "rmtree", refused)
    with pytest.raises(HostError, match="has too many directories within each other to be removed. Stop its jobs"):
        plugin.delete(*removal(volumes))


async def test_two_calls_do_not_interleave(volumes: Path, state: Path) -> None:
    """A second call waits for the lock of the records, except in the thread of an event loop."""
    state.mkdir(mode=0o700)
    with closing(lock_directory(state)), pytest.raises(LockedError, match="state is locked by another process"):
        plugin.delete(*removal(volumes))
    plugin.delete(*removal(volumes))


def test_file_system_error_is_one_sentence(tmp_path: Path, state: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HostError, match="volume data: .*/file/.* cannot be used: Not a directory"):
        plugin.create(request(tmp_path / "file"))


def test_answers_are_those_of_the_protocol(
    volumes: Path, state: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {
        "DHV_VOLUMES_DIR": str(volumes),
        "DHV_VOLUME_ID": ID,
        "DHV_VOLUME_NAME": "data",
        "DHV_CAPACITY_MAX_BYTES": str(GRAIN),
    }
    assert plugin.run("create", environment) == 0
    assert json.loads(capsys.readouterr().out) == {"path": f"{volumes}/{ID}", "bytes": GRAIN}
    assert plugin.run("create", {**environment, "DHV_CAPACITY_MAX_BYTES": "0"}) == 1
    output = capsys.readouterr()
    sentence = 'volume data has no capacity: expected the size of its disk. Set capacity_max = "1GiB".'
    assert output.err == f"solo5-disk: {sentence}\n"
    assert json.loads(output.out) == {"error": sentence}
    assert plugin.run("destroy", environment) == 1
    assert "operation 'destroy' is unknown" in capsys.readouterr().err
