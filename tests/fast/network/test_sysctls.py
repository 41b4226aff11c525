"""Which links forward, with what contract tests do not meet in a kernel, and the limits of the neighbour table."""

import shutil
from pathlib import Path

import pytest

from solo5_systemd.network import sysctls
from solo5_systemd.network.neighbours import make_room


def test_a_link_that_vanishes_between_a_look_and_a_change_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a host that does not forward, but for packets that arrive on one link."""
    monkeypatch.setattr(sysctls, "_ROOT", tmp_path)
    for link, value in {"all": "0", "default": "0", "lo": "0", "eth0": "0", "ve": "1"}.items():
        (tmp_path / f"ipv4/conf/{link}").mkdir(parents=True)
        (tmp_path / f"ipv4/conf/{link}/forwarding").write_text(value)
    (tmp_path / "ipv4/ip_forward").write_text("0")
    before, read = sysctls.values_to_restore(), sysctls.read_sysctl
    sysctls.enable_forwarding()

    def vanishing(name: str) -> str:
        value = read(name)
        if "eth0" in name:
            shutil.rmtree((tmp_path / name).parent)
        return value

    monkeypatch.setattr(sysctls, "read_sysctl", vanishing)
    sysctls.restore(before)
    left = {file.parent.name: file.read_text() for file in (tmp_path / "ipv4/conf").glob("*/forwarding")}
    assert left == {"all": "0", "default": "0", "lo": "0", "ve": "1"}


def test_a_link_whose_name_is_a_pattern_of_nftables_is_not_accepted() -> None:
    before = {f"ipv4/conf/{name}/forwarding": "1" for name in ("eth*", 'a"b', "default", "vlan.7", "br-1")}
    assert sysctls.forwarding_links(before) == ["br-1", "vlan.7"]


# -- the limits of the host's neighbour table ------------------------------------------------------------------------


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
    make_room(256)
    assert values(limits) == [128, 512, 1024], "few guests change nothing"
    make_room(257)
    assert values(limits) == [256, 1024, 2048]


def test_larger_limits_of_the_operator_stay(limits: Path) -> None:
    (limits / "gc_thresh1").write_text("4096")
    (limits / "gc_thresh3").write_text("8192")
    make_room(4000)
    assert values(limits) == [4096, 8192, 16384]


def test_a_container_without_these_settings_is_left_alone(limits: Path) -> None:
    for path in list(limits.iterdir()):
        path.unlink()
    make_room(1000)
    assert not list(limits.iterdir())


def test_a_limit_that_cannot_be_set_is_logged(limits: Path, caplog: pytest.LogCaptureFixture) -> None:
    (limits / "gc_thresh2").unlink()
    (limits / "gc_thresh2").mkdir()
    make_room(1000)
    assert "cannot make room for 1000 guests" in caplog.text
