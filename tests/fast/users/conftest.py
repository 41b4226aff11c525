"""The files of users are those of each test."""

from pathlib import Path

import pytest

from solo5_systemd.storage import given_disks, owner
from solo5_systemd.users import registry, userdb_records


def below(root: Path) -> None:
    registry.DIRECTORY = root / "users"
    given_disks.GIVEN_DISKS = root / "notes"
    userdb_records.RECORDS, userdb_records.LOCKS = root / "userdb", root / "dynamic-uid"


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in (
        (registry, "DIRECTORY"),
        (given_disks, "GIVEN_DISKS"),
        (userdb_records, "RECORDS"),
        (userdb_records, "LOCKS"),
        (owner, "reclaim_disk"),
    ):
        monkeypatch.setattr(module, name, getattr(module, name))  # so that it is restored
    below(tmp_path)
