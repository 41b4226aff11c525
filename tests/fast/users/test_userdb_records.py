"""User records, and the lock of a uid in the range of `DynamicUser=`, shared with PID 1."""

import json
from pathlib import Path

from solo5_systemd.base.names import TaskName
from solo5_systemd.users.userdb_records import allocating, user_record


def test_while_we_hold_it_systemd_has_to_take_another(tmp_path: Path) -> None:
    with allocating(61200) as is_ours:
        assert is_ours
        with allocating(61200) as also:
            assert not also
        with allocating(61201) as other:
            assert other
    assert list((tmp_path / "dynamic-uid").iterdir()) == []


def test_a_file_that_a_killed_start_has_left_is_no_lock(tmp_path: Path) -> None:
    (tmp_path / "dynamic-uid").mkdir()
    (tmp_path / "dynamic-uid/61200").touch(0o600)
    with allocating(61200) as is_ours:
        assert is_ours
    assert not (tmp_path / "dynamic-uid/61200").exists()


WEB = TaskName("web")


def test_a_second_name_is_of_the_same_user() -> None:
    first, second = json.loads(user_record(61200, WEB)), json.loads(user_record(61200, WEB, "solo5-web"))
    assert second.pop("userName") == "solo5-web"
    assert first.pop("userName") == "solo5-61200"
    assert first == second
