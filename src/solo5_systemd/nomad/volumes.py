"""A task's volumes as disks: each `volume_mount` belongs to one `block` of the task, which names it.

Nomad passes the path of a volume on the host. That of a file system is a directory, where the disk is a file; that of a
block device is the device. Which of the two it is, is known only when the path is looked at: `published`.
"""

import posixpath
from collections.abc import Iterable
from dataclasses import replace

from solo5_systemd.base.errors import HostError, InvalidRequestError
from solo5_systemd.base.names import DeviceName
from solo5_systemd.base.sanitize import MAX_NAME, bounded
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.nomad.task_options import DiskOptions
from solo5_systemd.storage.model import VOLUME_IMAGE, DiskRequest


def check(task: wire.TaskConfig, requests: Iterable[DiskRequest]) -> None:
    """Raise InvalidRequestError unless each volume is used, each file by one block; `requests`: those of volumes."""
    used, named = dict[str, DeviceName](), set[str]()
    for each in requests:
        named |= {*each.roots}
        other = used.setdefault(each.path, each.disk)
        if other != each.disk:
            raise InvalidRequestError(
                f"task {task.name}: blocks {other} and {each.disk} have one file of one volume: expected a file for "
                "each."
            )
    for mount in task.mounts:
        if posixpath.normpath(mount.host_path) not in named:
            name = mount.task_path
            raise InvalidRequestError(
                f"task {task.name} has a volume_mount ({_quoted(name)}) that no block uses: a unikernel has no file "
                "system to mount it in.",
                f'Use it as a disk: config {{ block "NAME" {{ volume = "{_quoted(name)}" }} }}',
            )


def disk_request(task: wire.TaskConfig, disk: DeviceName, block: DiskOptions) -> DiskRequest:
    """Return the request of a block with `volume`, as the file in a directory; raises InvalidRequestError."""
    mount = _mount(task, disk, block)
    what = f"task {task.name}: volume_mount {_quoted(mount.task_path)}"
    if mount.readonly and not block.private:
        raise InvalidRequestError(
            f"{what} is read-only: expected a writable volume, since tenders open a disk for reading and writing.",
            f'For a copy of the disk for one run: block "{disk}" {{ read_only = true }}',
        )
    for key, value in (
        ("propagation_mode", mount.propagation_mode.removeprefix("private")),  # Nomad's default
        ("selinux_label", mount.selinux_label),
    ):
        if value:
            raise InvalidRequestError(
                f"{what} has {key} {_quoted(value)}: expected none, since a unikernel has no mounts.", f"Remove {key}."
            )
    volume = posixpath.normpath(mount.host_path)
    return DiskRequest(
        disk=disk,
        path=posixpath.join(volume, block.file or VOLUME_IMAGE),
        sector_size=block.sector_size,
        roots=(volume,),
        allocation=(volume,),
        create=block.size,
        private=block.private,
    )


def published(
    task: wire.TaskConfig, block: DiskOptions, request: DiskRequest, *, is_mounted: bool, is_directory: bool
) -> DiskRequest:
    """Return the request of a volume whose path has been looked at.

    A CSI volume that is not mounted would be a file on the node's own disk. Nomad has CSI volumes published at
    `…/per-alloc/ALLOCATION/VOLUME/MODE`; no path of a host volume has such a part.

    Args:
        is_directory: whether the volume is a directory; otherwise it is the disk itself.

    Raises:
        HostError: a CSI volume is not mounted.
        InvalidRequestError: `file` or `size` is set for a block device.
    """
    [volume] = request.roots
    named = _quoted(block.volume or "")
    if f"/per-alloc/{task.alloc_id}/" in volume and not is_mounted:
        raise HostError(
            f"disk {request.disk}: volume {named} is not mounted at {volume}: expected a CSI volume that its plugin "
            "has published.",
            f"Nomad has it published for a new allocation: nomad alloc stop {task.alloc_id}",
        )
    if is_directory:
        return request
    for key, value in (("file", block.file), ("size", block.size)):
        if value is not None:
            raise InvalidRequestError(
                f'config.block "{request.disk}".{key} is {_quoted(str(value))}: expected none, since volume '
                f"{named} is a block device ({volume}).",
                f'Remove {key}, or mount the volume with attachment_mode = "file-system".',
            )
    return replace(request, path=volume, roots=(posixpath.dirname(volume),))  # a root is a directory


def _mount(task: wire.TaskConfig, disk: DeviceName, block: DiskOptions) -> wire.Mount:
    """Return the mount of a block's volume: by its destination, or the name that Nomad has for it from 2.0.1 on.

    That is the name of a CSI volume's request, but of a host volume's source (client/allocrunner/taskrunner,
    volume_hook.go), which may be the name of another request.
    """
    name = block.volume or ""
    wanted = name.strip("/") or None  # without slashes at both ends: jobs write "data", "/data" and "/data/"
    found = [each for each in task.mounts if each.task_path.strip("/") == wanted or each.request_name == name]
    if len({mount.host_path for mount in found}) != 1:  # one volume may be mounted at several destinations
        have = ", ".join(_quoted(mount.task_path) for mount in task.mounts) or "none"
        raise InvalidRequestError(
            f'config.block "{disk}".volume is {_quoted(name)}: expected the volume or the destination of one '
            f"volume_mount of the task, which has {have}.",
            "Give each volume_mount the name of its volume as its destination.",
        )
    return next((mount for mount in found if mount.readonly), found[0])


def _quoted(text: str) -> str:
    return bounded(text, MAX_NAME)
