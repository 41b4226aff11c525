"""The cgroups of units: their files and attributes. A cgroup may be removed at any moment."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from solo5_systemd.base.decode import Fields, json_document
from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.base.names import SLICE

MOUNT = Path("/sys/fs/cgroup")


def unified() -> str:
    """Return the root of the unified hierarchy; on a hybrid host it is `unified/`, without most controllers."""
    return str(MOUNT if (MOUNT / "cgroup.procs").exists() else MOUNT / "unified")


def control_group(slice_unit: str, unit: str) -> str:
    """Return ControlGroup= of a unit in a slice; each `-` in a slice's name is a level (systemd.slice(5))."""
    words = slice_unit.removesuffix(".slice").split("-")
    levels = ["-".join(words[: count + 1]) for count in range(len(words))] if slice_unit != "-.slice" else []
    return "".join(f"/{level}.slice" for level in levels) + f"/{unit}"


def units(root: str, control_group: str = f"/{SLICE}") -> Iterator[tuple[str, str]]:
    """Yield the services and scopes below a slice, recursively, as unit name and ControlGroup= value."""
    try:
        names = os.listdir(root + control_group)  # noqa: PTH208 - a thousand times cheaper
    except OSError:  # the slice has no cgroup before its first unit
        return
    for name in names:
        if name.endswith(".slice"):
            yield from units(root, f"{control_group}/{name}")
        elif name.endswith((".service", ".scope")):
            yield name, f"{control_group}/{name}"


ATTRIBUTE = "user.solo5.log_fields"
"""A JSON object. The namespace is that of systemd's own cgroup attributes: user.invocation_id, user.delegate."""


def write_fields(directory: str, fields: Mapping[str, str]) -> None:
    """Set the log fields of a scope, which has no LogExtraFields=; only root can set the attribute, any user reads it.

    Errors are ignored: the cgroup was removed, and the attribute with it, or the kernel has no such xattrs.
    """
    with suppress(OSError):
        os.setxattr(directory, ATTRIBUTE, json.dumps(dict(fields)).encode())


def read_fields(directory: str) -> Mapping[str, str]:
    """Return the log fields of a scope's cgroup; empty without a valid attribute."""
    try:
        fields = Fields(json_document(os.getxattr(directory, ATTRIBUTE), ATTRIBUTE))
        return {key: fields.text(key) for key in fields}
    except (OSError, InvalidRequestError):
        return {}
