"""A command line without variable expansion, for each release of systemd."""

import pytest

from solo5_systemd.unit.exec_start import exec_start, for_release, has_dollars, release_of
from solo5_systemd.unit.properties import Property

LINE = ("/x", "$HOME", "${A}", "a$$", "%n")


@pytest.mark.parametrize("release", [0, 252, 253])
def test_before_the_flag_is_written_as_it_is_read_dollars_are_doubled(release: int) -> None:
    doubled = [("/x", ["/x", "$$HOME", "$${A}", "a$$$$", "%n"], False)]
    assert for_release(exec_start(LINE), release) == Property("ExecStart", "a(sasb)", doubled)


@pytest.mark.parametrize("release", [254, 257, 258])
def test_since_then_the_flag_has_them_left_alone(release: int) -> None:
    literal = [("/x", list(LINE), ["no-env-expand"])]
    assert for_release(exec_start(LINE), release) == Property("ExecStartEx", "a(sasas)", literal)


def test_the_version_matters_where_there_is_a_dollar_alone() -> None:
    assert has_dollars(exec_start(LINE))
    assert not has_dollars(exec_start(("/x", "%n")))
    assert not has_dollars(Property("Description", "s", "$"))


@pytest.mark.parametrize(
    "version, release", [("257.7-1~deb13u1", 257), ("252.38-1~deb12u1", 252), ("v258~rc1", 258), ("unknown", 0)]
)
def test_the_release_is_read_of_a_development_version_as_well(version: str, release: int) -> None:
    assert release_of(version) == release
