"""The limits of the host's neighbour table, and whether the host is a router."""

from pathlib import Path

import pytest

from solo5_systemd.network import sysctls


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


def test_few_guests_change_nothing(limits: Path) -> None:
    assert sysctls.make_room_for_neighbours(256, 0) == 1024
    assert values(limits) == [128, 512, 1024]


def test_the_table_grows_with_the_guests_by_powers_of_two(limits: Path) -> None:
    assert sysctls.make_room_for_neighbours(257, 1024) == 2048
    assert values(limits) == [256, 1024, 2048]
    (limits / "gc_thresh3").unlink()
    assert sysctls.make_room_for_neighbours(768, 2048) == 2048, "no file is read while there is room"


def test_larger_limits_of_the_operator_stay(limits: Path) -> None:
    (limits / "gc_thresh1").write_text("4096")
    (limits / "gc_thresh3").write_text("8192")
    assert sysctls.make_room_for_neighbours(1000, 0) == 8192
    assert sysctls.make_room_for_neighbours(4000, 8192) == 16384
    assert values(limits) == [4096, 8192, 16384]


def test_a_container_without_these_settings_is_left_alone(limits: Path) -> None:
    for path in list(limits.iterdir()):
        path.unlink()
    assert sysctls.make_room_for_neighbours(1000, 0) == 512 + 2000


def test_a_limit_that_cannot_be_set_is_logged_once(limits: Path, caplog: pytest.LogCaptureFixture) -> None:
    (limits / "gc_thresh3").write_text("many")
    room = sysctls.make_room_for_neighbours(1000, 0)
    assert "cannot make room for 1000 guests" in caplog.text
    caplog.clear()
    assert sysctls.make_room_for_neighbours(1000, room) == room
    assert not caplog.text


@pytest.mark.parametrize(
    ("files", "is_router"),
    [
        ({}, False),
        ({"a/9.conf": "# net.ipv4.ip_forward = 1"}, False),
        ({"a/9.conf": "net.ipv4.ip_forward=1"}, True),
        ({"b/9.conf": "-net/ipv4/ip_forward = 1"}, True),
        ({"b/9.conf": "kernel.x = 1\nnet.ipv4.conf.all.forwarding = 1\n"}, True),
        ({"b/1.conf": "net.ipv4.ip_forward=1", "a/9.conf": "net.ipv4.ip_forward=0"}, False),
        ({"b/9.conf": "net.ipv4.ip_forward=1", "a/1.conf": "net.ipv4.ip_forward=0"}, True),
        ({"b/9.conf": "net.ipv4.ip_forward=1", "a/9.conf": ""}, False),  # hidden by an empty file
        ({"a/9.txt": "net.ipv4.ip_forward=1", "a/9.conf/x.conf": "net.ipv4.ip_forward=1"}, False),
    ],
)
def test_a_host_is_a_router_by_sysctl_d(tmp_path: Path, files: dict[str, str], is_router: bool) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    places = [tmp_path / "a", tmp_path / "b", tmp_path / "missing"]
    assert sysctls.is_configured_to_forward(directories=places) is is_router
    assert not sysctls.is_configured_to_forward(6, places)


@pytest.mark.parametrize("line", ["net.ipv6.conf.all.forwarding = 1", "-net/ipv6/conf/all/forwarding=1"])
def test_a_host_is_a_router_of_ipv6_by_a_setting_of_its_own(tmp_path: Path, line: str) -> None:
    (tmp_path / "9.conf").write_text(line)
    assert sysctls.is_configured_to_forward(6, [tmp_path])
    assert not sysctls.is_configured_to_forward(4, [tmp_path])
