"""Log fields of a scope, in an extended attribute of its cgroup, since scopes have no LogExtraFields=."""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from solo5_systemd.cgroup.hierarchy import MOUNT, unified
from solo5_systemd.decode import Fields, json_document
from solo5_systemd.errors import InvalidRequestError

ATTRIBUTE = "user.solo5.log_fields"
"""A JSON object. The namespace is that of systemd's own cgroup attributes: user.invocation_id, user.delegate."""


class ScopeFields:
    """The log fields of scopes: only root can set the attribute, any user can read it.

    The attribute is removed with the cgroup, so that it always belongs to the present run of the scope.

    Args:
        mount: the mount point of cgroups.
    """

    def __init__(self, mount: Path = MOUNT) -> None:
        self._root = unified(mount)

    def write(self, control_group: str, fields: Mapping[str, str]) -> None:
        """Set the fields of a cgroup; errors are ignored (the cgroup was removed, or the kernel has no such xattrs)."""
        with suppress(OSError):
            os.setxattr(self._root + control_group, ATTRIBUTE, json.dumps(dict(fields)).encode())

    def read(self, control_group: str) -> Mapping[str, str]:
        """Return the fields of a cgroup; empty without a valid attribute."""
        try:
            fields = Fields(json_document(os.getxattr(self._root + control_group, ATTRIBUTE), ATTRIBUTE))
            return {key: fields.text(key) for key in fields}
        except (OSError, InvalidRequestError):
            return {}
