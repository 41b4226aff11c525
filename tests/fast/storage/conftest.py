"""What holds for every test of storage."""

from pathlib import Path

import pytest

from solo5_systemd.storage import created_on


@pytest.fixture(autouse=True)
def mounts(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The records of mount points, which would be those of this host where the tests' files have a file system."""
    directory = tmp_path_factory.mktemp("state") / "mounts"
    monkeypatch.setattr(created_on, "MOUNTS", directory)
    return directory
