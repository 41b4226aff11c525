from pathlib import Path

from solo5_systemd.wiring.engine import HostDirectories


async def test_a_directory_is_gone_where_the_one_around_it_is_still_there(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    asked = {str(tmp_path / name) for name in ("there", "gone", "away/gone")}
    assert await HostDirectories().removed(asked) == {str(tmp_path / "gone")}


async def test_what_cannot_be_looked_at_is_not_gone(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert await HostDirectories().removed([str(tmp_path / "file/below"), str(tmp_path / ("x" * 300))]) == frozenset()
