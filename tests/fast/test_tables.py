"""What `make tables` writes is what the tables of settings have."""

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from tests.tables import EXAMPLE, written

from solo5_systemd.base.names import NetworkName
from solo5_systemd.settings.network_keys import network_keys
from solo5_systemd.settings.solo5_toml import Settings, check_reach, parse_settings


@pytest.mark.parametrize("path", written(), ids=lambda path: path.name)
def test_a_page_has_the_tables(path: Path) -> None:
    assert path.read_text() == written()[path], "run `make tables`"


def test_the_example_has_every_key_and_can_be_used_as_it_is() -> None:
    text = re.sub(r"^#(?! )", "", EXAMPLE.read_text(), flags=re.MULTILINE)
    document = tomllib.loads(text)
    settings = parse_settings(document)
    check_reach(settings)
    assert settings.tender_paths == Settings().tender_paths
    assert replace(settings.limits, reserve_mb=None) == Settings().limits
    assert [port for port in (21, 22, 23, 4645, 4646, 4648, 4649) if settings.reserves(port)] == [22, 4646, 4648]
    assert [network.name for network in settings.networks] == ["default", "backend", "namespace", "lan"]
    assert {key for table in document["network"].values() for key in table} == {*network_keys()}
    default, lan = (settings.network(NetworkName(name)) for name in ("default", "lan"))
    assert default is not None
    assert (default.bridge, default.mtu, default.masquerade) == ("solo5-default", 1500, True)
    assert lan is not None
    assert lan.join is not None
    assert (lan.bridge, lan.join.vlan) == ("br0", 20)
