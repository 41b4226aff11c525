"""What a scope says of its task: systemd keeps LogExtraFields= only for what it executes itself, and the kernel this.

It is an extended attribute of the scope's cgroup, which root alone can set, and which is gone with the cgroup: whoever
reads it reads it of this run of the scope, and reads what its starter wrote.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from solo5_systemd.cgroup.files import MOUNT, unified
from solo5_systemd.decode import Fields, json_document
from solo5_systemd.errors import InvalidRequestError

ATTRIBUTE = "user.solo5.log_fields"
"""JSON. systemd's own attributes of cgroups are called so, too: user.invocation_id, user.delegate."""


class Marks:
    """Readable by everybody.

    Args:
        mount: of cgroups.
    """

    def __init__(self, mount: Path = MOUNT) -> None:
        self._root = unified(mount)

    def write(self, control_group: str, fields: Mapping[str, str]) -> None:
        """Mark a cgroup; one that has gone, or whose kernel knows no such attributes, stays without a mark."""
        with suppress(OSError):
            os.setxattr(self._root + control_group, ATTRIBUTE, json.dumps(dict(fields)).encode())

    def read(self, control_group: str) -> Mapping[str, str]:
        """What a cgroup says; nothing where it has gone, or has no mark."""
        try:
            fields = Fields(json_document(os.getxattr(self._root + control_group, ATTRIBUTE), "the mark"))
            return {key: fields.text(key) for key in fields}
        except (OSError, InvalidRequestError):
            return {}
