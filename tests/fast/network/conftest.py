"""The directories of networks, in the place of those of the machine."""

from pathlib import Path

import pytest

from solo5_systemd.network import lease_files


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the network service's files."""
    monkeypatch.setattr(lease_files, "STATE", tmp_path)
    return tmp_path
