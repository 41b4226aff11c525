"""The lock of a uid in the range of `DynamicUser=`, shared with PID 1."""

from pathlib import Path

from solo5_systemd.users.userdb_records import Records


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
