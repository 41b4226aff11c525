"""Extended attributes, on whatever file system the tests have."""

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest


class Attributes:
    """Of directories; `stored` is what was set, by directory and name.

    Args:
        monkeypatch: that has `cgroup.marks` use them.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stored: dict[tuple[str, str], bytes] = {}
        functions = SimpleNamespace(setxattr=self._set, getxattr=self._get)
        monkeypatch.setattr("solo5_systemd.cgroup.scope_xattrs.os", functions)

    def _set(self, path: str, name: str, value: bytes) -> None:
        if not Path(path).is_dir():
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        self.stored[path, name] = value

    def _get(self, path: str, name: str) -> bytes:
        if (path, name) not in self.stored:
            raise OSError(errno.ENODATA, os.strerror(errno.ENODATA))
        return self.stored[path, name]
