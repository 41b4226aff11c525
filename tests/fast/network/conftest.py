"""The directories of networks, in the place of those of the machine, and a network."""

from ipaddress import IPv4Network
from pathlib import Path

import pytest

from solo5_systemd.base.names import NetworkName
from solo5_systemd.network import lease_files
from solo5_systemd.settings.network_policy import Network


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the network service's files."""
    monkeypatch.setattr(lease_files, "STATE", tmp_path)
    return tmp_path


def network(ipv4: str = "10.77.0.0/29", name: str = "default") -> Network:
    return Network(
        name=NetworkName(name),
        bridge=f"solo5-{name}",
        ipv4=IPv4Network(ipv4),
        gateway4=IPv4Network(ipv4)[1],
        mtu=1500,
    )
