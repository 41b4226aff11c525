"""Properties of running units, read from files instead of one D-Bus call per property.

PID 1 exports a unit's invocation and its extra fields to journald in two files below /run/systemd/units (systemd's
unit.c, `unit_export_state_files`); the rest is in its cgroup. The files are private to systemd: callers read a property
that is missing here from D-Bus.
"""

import os
import struct
from collections.abc import Mapping
from pathlib import Path

from solo5_systemd.cgroup.hierarchy import MOUNT, unified, units
from solo5_systemd.workload import UnitKind

UNITS = Path("/run/systemd/units")

_LENGTH = struct.Struct("<Q")


class ExportedState:
    """The exported state of all running units; world-readable.

    Args:
        exported: directory to which PID 1 exports.
        mount: mount point of the cgroup hierarchy.
    """

    def __init__(self, exported: Path = UNITS, mount: Path = MOUNT) -> None:
        self._exported = exported
        self._root = unified(mount)

    def control_groups(self) -> Mapping[str, str]:
        """Return ControlGroup= of every unit below solo5.slice, by unit name."""
        return dict(units(self._root))

    def properties(self, unit: str, control_group: str) -> dict[str, object]:
        """Return the D-Bus properties of a unit that the files contain, with the names and values of D-Bus."""
        found: dict[str, object] = {"ControlGroup": control_group}
        found |= _invocation(self._exported / f"invocation:{unit}")
        found |= _freezer(_read(f"{self._root}{control_group}/cgroup.freeze"))
        if unit.endswith(UnitKind.SERVICE):
            found |= _main_process(_read(f"{self._root}{control_group}/cgroup.procs"))
            found |= _log_fields(_read(f"{self._exported}/log-extra-fields:{unit}"))
        return found


def _invocation(link: Path) -> dict[str, object]:
    try:
        return {"InvocationID": bytes.fromhex(os.readlink(link))}  # noqa: PTH115 - for a string
    except (OSError, ValueError):
        return {}


def _freezer(text: bytes | None) -> dict[str, object]:
    return {} if text is None else {"FreezerState": "frozen" if text.strip() == b"1" else "running"}


def _main_process(text: bytes | None) -> dict[str, object]:
    """Return MainPID= if the cgroup has one process; of several the main one is not in a file."""
    pids = (text or b"").split()
    return {"MainPID": int(pids[0])} if len(pids) == 1 and int(pids[0]) else {}


def _log_fields(data: bytes | None) -> dict[str, object]:
    """Return LogExtraFields=: each assignment follows its length, 64 bits little-endian."""
    if data is None:
        return {}
    fields: list[bytes] = []
    position = 0
    while position + _LENGTH.size <= len(data):
        (length,) = _LENGTH.unpack_from(data, position)
        position += _LENGTH.size
        fields.append(data[position : position + length])
        position += length
    return {"LogExtraFields": fields} if position == len(data) else {}


def _read(path: str) -> bytes | None:
    """Return the content of a file; None if the unit, and the file with it, has been removed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:
        return None
    finally:
        os.close(descriptor)
