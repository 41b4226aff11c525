"""Which links forward."""

import shutil
from pathlib import Path

import pytest

from solo5_systemd.network import sysctls


def forwarding(root: Path, **values: str) -> None:
    for link, value in values.items():
        (root / f"ipv4/conf/{link}").mkdir(parents=True, exist_ok=True)
        (root / f"ipv4/conf/{link}/forwarding").write_text(value)


def now(root: Path) -> dict[str, str]:
    return {file.parent.name: file.read_text() for file in (root / "ipv4/conf").glob("*/forwarding")}


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host that does not forward, but for packets that arrive on one link."""
    monkeypatch.setattr(sysctls, "_ROOT", tmp_path)
    (tmp_path / "ipv4").mkdir()
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


def test_a_link_that_vanishes_between_a_look_and_a_change_is_no_error(
    host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, read = sysctls.values_to_restore(), sysctls.read_sysctl
    sysctls.enable_forwarding()

    def vanishing(name: str) -> str:
        value = read(name)
        if "eth0" in name:
            shutil.rmtree((host / name).parent)
        return value

    monkeypatch.setattr(sysctls, "read_sysctl", vanishing)
    sysctls.restore(before)
    assert now(host) == {"all": "0", "default": "0", "lo": "0", "ve": "1"}


def test_a_link_whose_name_is_a_pattern_of_nftables_is_not_accepted() -> None:
    before = {f"ipv4/conf/{name}/forwarding": "1" for name in ("eth*", 'a"b', "default", "vlan.7", "br-1")}
    assert sysctls.forwarding_links(before) == ["br-1", "vlan.7"]
