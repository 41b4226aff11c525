"""The operator's `plugin "solo5" { config }`: each key right, and wrong with its path."""

from typing import Any

import pytest
from tests.fast.nomad.values import packed

from solo5_systemd.base.errors import SettingsError
from solo5_systemd.base.names import NetworkName, Target, UnitKind
from solo5_systemd.nomad.option_values import Logging
from solo5_systemd.nomad.plugin_config import (
    TIGHTENING,
    Defaults,
    ForgottenTasksConfig,
    GcConfig,
    PluginConfig,
    plugin_config,
)
from solo5_systemd.storage.io_limits import IoLimits
from solo5_systemd.task.policy import Ceilings
from solo5_systemd.task.properties import SETTABLE

POLICY = {
    "routed": True,
    "reach": ["x"],
    "isolated": True,
    "host": ["53/udp"],
    "metadata": True,
    "connections": 64,
    "fragments": True,
}
NETWORK = {
    "ipv4": "10.1.0.0/16",
    "gateway4": "10.1.0.9",
    "bridge": "br0",
    "mtu": 9000,
    "masquerade": False,
    "dns": ["9.9.9.9"],
    "search": ["example.org"],
    **POLICY,
}

IO = {"read_bps": "50M"}


# Each key of a table as an operator writes it, and what is read.
WRITTEN: dict[str, tuple[object, object]] = {
    "enabled": (False, False),
    "image_paths": (["/srv/images"], ("/srv/images",)),
    "block_paths": (["/srv/disks"], ("/srv/disks",)),
    "tender_paths": (["/opt/solo5/bin"], ("/opt/solo5/bin",)),
    "image_store_mb": (100, 100),
    "log_namespace": ("guests", "guests"),
    "networks": (["lab"], (NetworkName("lab"),)),
    "network": ({"lab": NETWORK}, {"lab": NETWORK}),
    "stats_interval": ("2s", 2.0),
    "disable_log_collection": (True, True),
    "allowed_properties": (["TasksMax"], ("TasksMax",)),
    "allowed_units": (["service", "scope"], (UnitKind.SERVICE, UnitKind.SCOPE)),
    "allowed_tenders": (["hvt"], (Target.HVT,)),
    "allowed_disks": (["web-*"], ("web-*",)),
    "defaults": (
        {"tender": "hvt", "unit": "scope", "logging": "journald", "quiet": True, "cpu_hard_limit": True,
         "properties": {"TasksMax": "16"}},
        Defaults(tender=Target.HVT, unit=UnitKind.SCOPE, logging=Logging.JOURNALD, quiet=True, cpu_hard_limit=True,
                 properties=(("TasksMax", "16"),)),
    ),
    "ceilings": (
        {"memory_mb": 512, "nics": 2, "blocks": 1, "ports": 0, "image_mb": 9, "io": IO},
        Ceilings(memory_mb=512, nics=2, blocks=1, ports=0, image_mb=9, io=IoLimits(read_bps=50_000_000)),
    ),
    "gc": (
        {"enabled": False, "interval": "30m", "image_age": "1h30m", "tasks": False,
         "dangling_tasks": {"enabled": False, "period": "2m", "creation_grace": "10m", "dry_run": True}},
        GcConfig(enabled=False, interval=1800.0, image_age=5400.0, tasks=False,
                 dangling_tasks=ForgottenTasksConfig(enabled=False, period=120.0, creation_grace=600.0, dry_run=True)),
    ),
}  # fmt: skip


def test_every_key_is_read() -> None:
    expected: dict[str, Any] = {key: read for key, (_, read) in WRITTEN.items()}
    assert plugin_config(packed(**{key: given for key, (given, _) in WRITTEN.items()})) == PluginConfig(**expected)


@pytest.mark.parametrize(
    "data", [b"", b"\x80", packed(enabled=None, defaults=None, ceilings=None, gc=None, network={})]
)
def test_no_configuration_is_the_defaults(data: bytes) -> None:
    assert plugin_config(data) == PluginConfig()


def test_properties_that_a_job_may_set_by_default_can_be_set() -> None:
    assert set(TIGHTENING) <= set(SETTABLE)


@pytest.mark.parametrize(
    "keys, words",
    [
        ({"image_paths": ["images"]}, 'image_paths is \'images\': expected absolute directories, such as image'),
        ({"tender_paths": [""]}, "tender_paths is ['']"),
        ({"image_store_mb": 0}, "image_store_mb is 0"),
        ({"log_namespace": "../x"}, "log_namespace: journal namespace '../x' is not usable"),
        ({"networks": ["a b"]}, "networks: network name 'a b' is not usable"),
        ({"network": {"a b": {}}}, "network.a b: network name 'a b' is not usable"),
        ({"network": {"lab": {"mtu": "9k"}}}, "network.lab.mtu is '9k': expected a whole number"),
        ({"stats_interval": "1x"}, "stats_interval: duration '1x' is not a time: expected a time span such as 30s"),
        ({"stats_interval": "1ms"}, "stats_interval is '1ms': expected at least 0.1 seconds"),
        ({"allowed_properties": ["User"]}, "allowed_properties is 'User': expected some of AllowedCPUs,"),
        ({"allowed_units": ["slice"]}, "allowed_units is 'slice': expected one of"),
        ({"allowed_disks": ["web/*"]}, "allowed_disks is 'web/*': expected names of disks, with * and ?"),
        ({"defaults": {"unit": "scope"}}, "defaults.unit is 'scope': expected one of allowed_units (service)"),
        (
            {"allowed_tenders": ["hvt"], "defaults": {"tender": "spt"}},
            "defaults.tender is 'spt': expected one of allowed_tenders (hvt)",
        ),
        ({"defaults": {"tender": "xen"}}, "defaults.tender is 'xen'"),
        ({"defaults": {"properties": {"TasksMax": "x"}}}, "defaults.properties: unit property TasksMax=x"),
        ({"defaults": {"properties": {"User": "root"}}}, "defaults.properties: unit property 'User' cannot be set"),
        ({"ceilings": {"io": {"read_bps": "0"}}}, "ceilings.io.read_bps: read_bps '0' is not an I/O limit: expected"),
        ({"ceilings": {"nics": 0.5}}, "ceilings.nics is 0.5"),
        ({"gc": {"interval": "0s"}}, "gc.interval is '0s': expected at least 1 seconds"),
        ({"gc": {"dangling_tasks": {"creation_grace": "1s"}}}, "gc.dangling_tasks.creation_grace is '1s': expected at"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_reported_with_its_path(keys: dict[str, object], words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        plugin_config(packed(**keys))
    assert str(caught.value).startswith("plugin.solo5.config")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("given", "written"), [("true", True), ("false", False), (False, False), ("2001:db8:1::/64", "2001:db8:1::/64")]
)
def test_ipv6_is_a_word_or_a_prefix_as_hcl_converts_it(given: object, written: object) -> None:
    assert plugin_config(packed(network={"six": {"ipv6": given}})).network == {"six": {"ipv6": written}}
    more = {"ipv6": "2001:db8:1::/64", "gateway6": "2001:db8:1::9", "nat66": True, "ra": True}
    assert plugin_config(packed(network={"six": more})).network == {"six": more}


def test_a_network_is_written_as_it_is_set() -> None:
    for limits in ([], ["sent=10M"]):
        table = {"rate": limits}
        assert plugin_config(packed(network={"namespace": table})).network == {"namespace": table}
    lan = {"join": "br0", "vlan": 20, "ipv4": "192.168.1.0/24", "pool": "192.168.1.2-192.168.1.9"}
    lan |= {"ipv6": "2001:db8:1::/64", "pool6": "2001:db8:1::2-2001:db8:1::9", "gateway6": "fe80::1"}
    assert plugin_config(packed(network={"lan": lan})).network == {"lan": lan}
