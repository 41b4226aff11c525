"""Volumes of a job as disks: which mount a block means, and what is refused before anything is created."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from tests.fast.nomad.values import ALLOCATION, task_config

from solo5_systemd.base.errors import HostError, InvalidRequestError
from solo5_systemd.base.names import DeviceName
from solo5_systemd.nomad import volumes
from solo5_systemd.nomad.plugin_config import PluginConfig
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.nomad.task_options import DiskOptions, task_options
from solo5_systemd.nomad.workload import workload_of
from solo5_systemd.storage.model import DiskRequest

VOLUME = "/var/lib/nomad/host_volumes/1"
DATA = {"volume": "data"}
OTHER = "/var/lib/nomad/host_volumes/2"


def mount(name: str = "", destination: str = "data", path: str = VOLUME, **others: object) -> wire.Mount:
    """A mount as Nomad 1.11.3 sends it: without the name of the request, and with its default of the mode."""
    fields: dict[str, object] = {"propagation_mode": "private", **others}
    return wire.Mount(request_name=name, task_path=destination, host_path=path, **fields)  # type: ignore[arg-type]


def task(*mounts: wire.Mount, **blocks: Mapping[str, object]) -> wire.TaskConfig:
    made = task_config(block=blocks)
    made.mounts.extend(mounts)
    return made


def disks(made: wire.TaskConfig) -> list[DiskRequest]:
    options = task_options(made.msgpack_driver_config)
    return list(workload_of(made, options, PluginConfig(), 2).disks)


def refusal(made: wire.TaskConfig) -> str:
    with pytest.raises(InvalidRequestError) as refused:
        disks(made)
    return str(refused.value)


def request(path: str = f"{VOLUME}/disk.img", volume: str = VOLUME, disk: str = "storage") -> DiskRequest:
    return DiskRequest(disk=DeviceName(disk), path=path, roots=(volume,), allocation=(volume,))


@pytest.mark.parametrize(
    "made",
    [
        mount("data", "/anywhere"),
        mount("", "data"),
        mount("", "/data"),
        mount("", "/data/"),
        mount("data", path=f"{VOLUME}/"),
    ],
)
def test_volume_is_found_by_its_request_or_by_its_destination(made: wire.Mount) -> None:
    assert disks(task(made, storage=DATA)) == [request()]


def test_the_name_of_one_volume_that_is_the_destination_of_another_is_refused() -> None:
    """Nomad 2 passes the source of a host volume as its name: neither of the two is certain to be meant."""
    both = mount("other", "data", OTHER), mount("data", "other")
    assert "volume is data: expected the volume or the destination of one" in refusal(task(*both, storage=DATA))


def test_one_volume_has_several_disks() -> None:
    found = disks(task(mount(), storage=DATA, log={"volume": "data", "file": "below/log.img"}))
    assert sorted(each.path for each in found) == [f"{VOLUME}/below/log.img", f"{VOLUME}/disk.img"]


def test_sector_size_is_that_of_the_block() -> None:
    [found] = disks(task(mount(), storage={"volume": "data", "sector_size": 4096}))
    assert found.sector_size == 4096


@pytest.mark.parametrize(
    "made, words",
    [
        (
            task(mount(), storage={"source": "local/disk.img"}),
            "task web has a volume_mount (data) that no block uses: a unikernel has no file system to mount it in. "
            'Use it as a disk: config { block "NAME" { volume = "data" } }',
        ),
        (
            task(mount("vol", "/a"), storage=DATA),
            'config.block "storage".volume is data: expected the volume or the destination of one volume_mount of the '
            "task, which has /a.",
        ),
        (task(storage=DATA), "of one volume_mount of the task, which has none."),
        (task(mount(destination="/"), storage={"volume": "/"}), "volume is /: expected"),
        (task(mount(), storage={"volume": ""}), "config.block.storage.volume is '': expected the name of a volume"),
        (
            task(mount(), mount(path=OTHER), storage=DATA),
            "of one volume_mount of the task, which has data, data",
        ),
        (
            task(mount(readonly=True), storage=DATA),
            "task web: volume_mount data is read-only: expected a writable volume, since tenders open a disk for",
        ),
        (task(mount(), mount(destination="/data", readonly=True), storage=DATA), "is read-only"),
        (
            task(mount(propagation_mode="host-to-task"), storage=DATA),
            "volume_mount data has propagation_mode host-to-task: expected none",
        ),
        (task(mount(selinux_label="Z"), storage=DATA), "volume_mount data has selinux_label Z: expected"),
        (
            task(mount(), storage=DATA, other={"volume": "/data"}),
            "have one file of one volume: expected a file for each",
        ),
        (task(mount("x" * 4000), storage={"volume": "y" * 4000}), "volume is yyy"),
    ],
)
def test_what_cannot_be_honoured_is_refused(made: wire.TaskConfig, words: str) -> None:
    sentence = refusal(made)
    assert words in sentence
    assert len(sentence) < 1000


def test_directory_has_a_file_and_a_block_device_is_the_disk() -> None:
    disk = DiskOptions(volume="data")
    made = task(mount(), storage=DATA)
    assert volumes.published(made, disk, request(), is_mounted=False, is_directory=True) == request()
    assert volumes.published(made, disk, request(), is_mounted=False, is_directory=False) == replace(
        request(path=VOLUME), roots=("/var/lib/nomad/host_volumes",)
    )


@pytest.mark.parametrize("key, value", [("file", "disk.img"), ("size", 4096)])
def test_file_and_size_of_a_block_device_are_refused(key: str, value: object) -> None:
    disk = DiskOptions(volume="data", **{key: value})  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match=f"{key} is {value}: expected none, since volume data is a block dev"):
        volumes.published(task(mount()), disk, request(), is_mounted=False, is_directory=False)


def test_file_is_created_with_the_size() -> None:
    made = task(mount(), storage={"volume": "data", "create": True, "size": "64M"})
    [found] = disks(made)
    assert found == replace(request(), create=64 << 20)


@pytest.mark.parametrize("key", ["read_only", "ephemeral"])
def test_copy_of_a_read_only_volumes_disk_is_permitted(key: str) -> None:
    [found] = disks(task(mount(readonly=True), storage={"volume": "data", key: True}))
    assert found == replace(request(), private=True)


def test_csi_volume_that_is_not_mounted_is_refused_and_a_host_volume_needs_no_mount() -> None:
    """Unmounted by hand: a file would be created on the node's own disk."""
    path = f"/var/lib/nomad/client/csi/node/ebs/per-alloc/{ALLOCATION}/data/rw-file-system-single-node-writer"
    made = task(mount(path=path), storage=DATA)
    [found], [disk] = disks(made), task_options(made.msgpack_driver_config).block.values()
    assert volumes.published(made, disk, found, is_mounted=True, is_directory=True) == found
    with pytest.raises(HostError, match=f"volume data is not mounted at {path}: expected a CSI volume"):
        volumes.published(made, disk, found, is_mounted=False, is_directory=True)
    of_host = task(mount(), storage=DATA)
    [found], [disk] = disks(of_host), task_options(of_host.msgpack_driver_config).block.values()
    assert volumes.published(of_host, disk, found, is_mounted=False, is_directory=True).path == f"{VOLUME}/disk.img"
