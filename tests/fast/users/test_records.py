"""The lock of a uid in the range of `DynamicUser=`, shared with PID 1."""

import fcntl
import os
from pathlib import Path

from solo5_systemd.users.records import Records


def test_a_lock_that_systemd_holds_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "61200"
    with path.open("w") as systemds:
        fcntl.flock(systemds, fcntl.LOCK_EX)
        with Records(tmp_path, tmp_path).allocating(61200) as is_ours:
            assert not is_ours
        assert path.exists()


def test_while_we_hold_it_systemd_has_to_take_another(tmp_path: Path) -> None:
    with Records(tmp_path, tmp_path / "made").allocating(61200) as is_ours:
        assert is_ours
        with Records(tmp_path, tmp_path / "made").allocating(61200) as also:
            assert not also
        with Records(tmp_path, tmp_path / "made").allocating(61201) as other:
            assert other
    assert list((tmp_path / "made").iterdir()) == []


def test_a_file_that_a_killed_start_has_left_is_no_lock(tmp_path: Path) -> None:
    (tmp_path / "61200").touch(0o600)
    with Records(tmp_path, tmp_path).allocating(61200) as is_ours:
        assert is_ours
    assert not (tmp_path / "61200").exists()


def test_the_lock_is_of_the_file_that_has_the_name(tmp_path: Path) -> None:
    """PID 1 removes the file while it has the lock: a lock of the removed file excludes no other process."""
    path = tmp_path / "61200"
    with Records(tmp_path, tmp_path).allocating(61200) as is_ours:
        assert is_ours
        with path.open() as held:
            assert os.fstat(held.fileno()).st_nlink == 1
