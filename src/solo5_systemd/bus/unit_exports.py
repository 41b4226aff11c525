"""What PID 1 has written to files of a unit that runs: for those who look at many, and would ask for each fact of each.

journald is told of a unit's invocation and of its extra fields by two files below /run/systemd/units (systemd's unit.c,
`unit_export_state_files`), and the rest is in its cgroup. The files are systemd's own affair: a fact that is not found
here is asked for at PID 1 by those who need it.
"""

import os
import struct
from collections.abc import Mapping
from pathlib import Path

from solo5_systemd.cgroup.files import MOUNT, unified, units
from solo5_systemd.workload import UnitKind

UNITS = Path("/run/systemd/units")

_LENGTH = struct.Struct("<Q")


class Exports:
    """Readable by everybody.

    Args:
        exported: where PID 1 writes for journald.
        mount: of cgroups.
    """

    def __init__(self, exported: Path = UNITS, mount: Path = MOUNT) -> None:
        self._exported = exported
        self._root = unified(mount)

    def control_groups(self) -> Mapping[str, str]:
        """Of every unit in a slice of ours, by its name: as ControlGroup= has it."""
        return dict(units(self._root))

    def properties(self, unit: str, control_group: str) -> dict[str, object]:
        """As many of the unit's D-Bus properties as can be told, under their names and with their values there."""
        found: dict[str, object] = {"ControlGroup": control_group}
        found |= _invocation(self._exported / f"invocation:{unit}")
        found |= _freezer(_read(f"{self._root}{control_group}/cgroup.freeze"))
        if unit.endswith(UnitKind.SERVICE):
            found |= _main_process(_read(f"{self._root}{control_group}/cgroup.procs"))
            found |= _log_fields(_read(f"{self._exported}/log-extra-fields:{unit}"))
        return found


def _invocation(link: Path) -> dict[str, object]:
    try:
        return {"InvocationID": bytes.fromhex(os.readlink(link))}  # noqa: PTH115 - a string is wanted
    except (OSError, ValueError):
        return {}


def _freezer(text: bytes | None) -> dict[str, object]:
    return {} if text is None else {"FreezerState": "frozen" if text.strip() == b"1" else "running"}


def _main_process(text: bytes | None) -> dict[str, object]:
    """The only one of a tender's cgroup; of several only PID 1 knows which it is."""
    pids = (text or b"").split()
    return {"MainPID": int(pids[0])} if len(pids) == 1 and int(pids[0]) else {}


def _log_fields(data: bytes | None) -> dict[str, object]:
    """Each assignment after its length, 64 bits of the least significant first."""
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
    """A file of the kernel or of PID 1, which is gone when its unit is."""
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
