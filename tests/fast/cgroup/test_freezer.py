from pathlib import Path

from solo5_systemd.cgroup.freezer import FrozenTime


def test_the_time_of_a_pause_is_measured(tmp_path: Path) -> None:
    events = tmp_path / "cgroup.events"
    events.write_text("populated 1\nfrozen 1\n")
    with FrozenTime(str(events)) as measured:
        events.write_text("populated 1\nfrozen 0\n")
    assert measured.seconds is not None
    assert 0 < measured.seconds < 10


def test_without_a_pause_or_a_cgroup_nothing_is_known(tmp_path: Path) -> None:
    events = tmp_path / "cgroup.events"
    events.write_text("populated 1\nfrozen 0\n")
    with FrozenTime(str(events)) as measured:
        pass
    assert measured.seconds is None
    with FrozenTime(str(tmp_path / "none")) as measured:
        pass
    assert measured.seconds is None
