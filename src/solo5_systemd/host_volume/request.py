"""The requests of Nomad's dynamic host volumes, as their plugins get them: an operation, and variables `DHV_*`.

Source: client/hostvolumemanager/host_volume_plugin.go of Nomad 1.10 to 2.0. The sizes and parameters are those of a
volume specification, which a user of Nomad has written; the directories are the agent's.
"""

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass

from solo5_systemd.base.decode import Fields, json_document
from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.settings.node_limits import Tenant, tenant
from solo5_systemd.storage.model import MAX_SECTOR_SIZE

GRAIN = MAX_SECTOR_SIZE
"""Bytes: a size is a multiple of this, so that the disk has whole sectors for each sector size of the tenders."""

MAX_SIZE = 1 << 60
"""Bytes; offsets of files have 63 bits."""

_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class CreateRequest:
    """A volume to create, or to keep as it is: Nomad repeats the request whenever the agent starts.

    Attributes:
        size: of a new disk image, in bytes; a smaller image grows to it.
        size_max: of an image that exists, in bytes; None: no limit.
    """

    name: str
    directory: str
    size: int
    size_max: int | None
    preallocate: bool
    tenant: Tenant


def create_request(environment: Mapping[str, str]) -> CreateRequest:
    """Return the request of `create`; raises InvalidRequestError."""
    name = environment.get("DHV_VOLUME_NAME", "")
    low, high = (_bytes(environment, name, bound) for bound in ("MIN", "MAX"))
    where = f"volume {name}: parameters"
    document = json_document((environment.get("DHV_PARAMETERS", "") or "null").encode(errors="replace"), where)
    parameters = Fields({} if document is None else document, where)
    parameters.allow("preallocate")
    preallocate = parameters.text("preallocate", "false")
    if preallocate not in ("true", "false"):  # Nomad's parameters are texts
        raise parameters.wrong("preallocate", preallocate, '"true" or "false"')
    return CreateRequest(
        name=name,
        directory=_directory(environment),
        size=_size(name, low, high),
        size_max=high or None,
        preallocate=preallocate == "true",
        tenant=tenant(environment.get("DHV_NAMESPACE", ""), ""),
    )


def delete_request(environment: Mapping[str, str]) -> tuple[str, str]:
    """Return name and directory of the volume of `delete`, the latter that of `create` if it is of this volume.

    Raises as `create_request`.
    """
    directory = _directory(environment)
    # After a failure to record the volume, Nomad passes the directory of all volumes here.
    created = posixpath.normpath(environment.get("DHV_CREATED_PATH", ""))
    if created.startswith("/") and posixpath.basename(created) == posixpath.basename(directory):
        directory = created
    return environment.get("DHV_VOLUME_NAME", ""), directory


def _directory(environment: Mapping[str, str]) -> str:
    parent, identifier = environment.get("DHV_VOLUMES_DIR", ""), environment.get("DHV_VOLUME_ID", "")
    if not parent.startswith("/"):
        raise InvalidRequestError(f"DHV_VOLUMES_DIR is {parent!r}: expected the absolute path of a directory.")
    if not _ID.fullmatch(identifier):  # it becomes the directory's name
        raise InvalidRequestError(f"DHV_VOLUME_ID is {identifier!r}: expected a UUID, as Nomad makes them.")
    return posixpath.join(posixpath.normpath(parent), identifier)


def _bytes(environment: Mapping[str, str], name: str, bound: str) -> int:
    text = environment.get(f"DHV_CAPACITY_{bound}_BYTES", "0")
    if not re.fullmatch("[0-9]{1,19}", text, re.ASCII) or int(text) > MAX_SIZE:
        raise InvalidRequestError(f"volume {name}: capacity_{bound.lower()} is {text} bytes: expected 0 to {MAX_SIZE}.")
    return int(text)


def _size(name: str, low: int, high: int) -> int:
    """Return the smallest size of at least `low` bytes or, without a lower bound, the largest of at most `high`."""
    if not low and not high:
        raise InvalidRequestError(
            f"volume {name} has no capacity: expected the size of its disk.", 'Set capacity_max = "1GiB".'
        )
    size = -(-low // GRAIN) * GRAIN if low else high // GRAIN * GRAIN
    if not size or (high and size > high):
        raise InvalidRequestError(
            f"volume {name}: no multiple of {GRAIN} bytes is between capacity_min {low} and capacity_max {high}: "
            "expected room for a disk with whole sectors.",
            f"Set capacity_max to {max(size, GRAIN)} or more.",
        )
    return size
