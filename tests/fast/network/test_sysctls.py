"""The limits of the host's neighbour table, and which links forward."""

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


def test_the_table_grows_with_the_guests_by_powers_of_two(limits: Path) -> None:
    assert sysctls.make_room_for_neighbours(256, 0) == 1024
    assert values(limits) == [128, 512, 1024], "few guests change nothing"
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


def forwarding(root: Path, **values: str) -> None:
    for link, value in values.items():
        (root / f"ipv4/conf/{link}").mkdir(parents=True, exist_ok=True)
        (root / f"ipv4/conf/{link}/forwarding").write_text(value)


def now(root: Path) -> dict[str, str]:
    return {file.parent.name: file.read_text() for file in (root / "ipv4/conf").glob("*/forwarding")}


@pytest.fixture
def host(limits: Path, tmp_path: Path) -> Path:
    """A host that does not forward, but for packets that arrive on one link."""
    (tmp_path / "ipv4/ip_forward").write_text("0")
    forwarding(tmp_path, all="0", default="0", lo="0", eth0="0", ve="1")
    return tmp_path


def test_each_link_forwards_and_the_host_is_no_router_of_others(host: Path) -> None:
    before = sysctls.values_to_restore()
    assert sysctls.forwarding_links(before) == ["ve"]
    assert sysctls.enable_forwarding()
    assert now(host) == {"all": "0", "default": "1", "lo": "1", "eth0": "1", "ve": "1"}
    assert not sysctls.enable_forwarding()
    assert not sysctls.is_router()
    forwarding(host, new="1")
    sysctls.restore(before)
    assert now(host) == {"all": "0", "default": "0", "lo": "0", "eth0": "0", "ve": "1", "new": "0"}


def test_what_a_host_needs_that_has_become_a_router_stays(host: Path) -> None:
    before = sysctls.values_to_restore()
    sysctls.enable_forwarding()
    (host / "ipv4/ip_forward").write_text("1")
    sysctls.restore(before)
    assert now(host)["eth0"] == "1"
    assert sysctls.values_to_restore() == {"ipv4/ip_forward": "1"}


def test_a_link_whose_name_is_a_pattern_of_nftables_is_not_accepted() -> None:
    before = {f"ipv4/conf/{name}/forwarding": "1" for name in ("eth*", 'a"b', "default", "vlan.7", "br-1")}
    assert sysctls.forwarding_links(before) == ["br-1", "vlan.7"]
