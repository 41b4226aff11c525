"""Which links forward: with what contract/test_network_other_programs.py does not meet in a kernel."""

import shutil
from pathlib import Path

import pytest

from solo5_systemd.network import sysctls


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
