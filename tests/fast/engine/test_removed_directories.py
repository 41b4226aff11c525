from pathlib import Path

from solo5_systemd.engine.gc import is_removed


def test_a_directory_is_gone_where_the_one_around_it_is_still_there(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    assert [is_removed(tmp_path / name) for name in ("there", "gone", "away/gone")] == [False, True, False]


def test_what_cannot_be_looked_at_is_not_gone(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert not any(map(is_removed, (tmp_path / "file/below", tmp_path / ("x" * 300))))
