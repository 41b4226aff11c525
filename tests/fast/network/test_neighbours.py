"""The limits of the host's neighbour table."""

from pathlib import Path

import pytest

from solo5_systemd.network import sysctls
from solo5_systemd.network.neighbours import make_room


@pytest.fixture
def limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Kernel's defaults, as files."""
    monkeypatch.setattr(sysctls, "_ROOT", tmp_path)
    directory = tmp_path / "ipv4/neigh/default"
    directory.mkdir(parents=True)
    for number, value in enumerate((128, 512, 1024), 1):
        (directory / f"gc_thresh{number}").write_text(f"{value}\n")
    return directory


def values(directory: Path) -> list[int]:
    return [int((directory / f"gc_thresh{number}").read_text()) for number in (1, 2, 3)]


def test_the_table_grows_with_the_guests_by_powers_of_two(limits: Path) -> None:
    assert make_room(256, 0) == 1024
    assert values(limits) == [128, 512, 1024], "few guests change nothing"
    assert make_room(257, 1024) == 2048
    assert values(limits) == [256, 1024, 2048]
    (limits / "gc_thresh3").unlink()
    assert make_room(768, 2048) == 2048, "no file is read while there is room"


def test_larger_limits_of_the_operator_stay(limits: Path) -> None:
    (limits / "gc_thresh1").write_text("4096")
    (limits / "gc_thresh3").write_text("8192")
    assert make_room(1000, 0) == 8192
    assert make_room(4000, 8192) == 16384
    assert values(limits) == [4096, 8192, 16384]


def test_a_container_without_these_settings_is_left_alone(limits: Path) -> None:
    for path in list(limits.iterdir()):
        path.unlink()
    assert make_room(1000, 0) == 512 + 2000


def test_a_limit_that_cannot_be_set_is_logged_once(limits: Path, caplog: pytest.LogCaptureFixture) -> None:
    (limits / "gc_thresh3").write_text("many")
    room = make_room(1000, 0)
    assert "cannot make room for 1000 guests" in caplog.text
    caplog.clear()
    assert make_room(1000, room) == room
    assert not caplog.text
