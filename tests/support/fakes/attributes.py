"""Extended attributes in memory, for file systems without them."""

import errno
import os
from pathlib import Path

import pytest


class Attributes:
    """The extended attributes of directories, by directory and name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stored: dict[tuple[str, str], bytes] = {}
        monkeypatch.setattr(os, "setxattr", self._set)
        monkeypatch.setattr(os, "getxattr", self._get)

    def _set(self, path: str, name: str, value: bytes) -> None:
        if not Path(path).is_dir():
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        self.stored[path, name] = value

    def _get(self, path: str, name: str) -> bytes:
        if (path, name) not in self.stored:
            raise OSError(errno.ENODATA, os.strerror(errno.ENODATA))
        return self.stored[path, name]
