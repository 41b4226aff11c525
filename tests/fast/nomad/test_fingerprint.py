"""What a node offers, and whether it can be relied on."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from tests.fast.host.test_checks import GOOD, HVT, SPT, dependency

from solo5_systemd.base.names import NetworkName
from solo5_systemd.host.checks import AS_ROUTER, Host, Kernel
from solo5_systemd.host.other_firewalls import DroppingChain
from solo5_systemd.nomad.fingerprint import HEALTHY, UNHEALTHY, after, fingerprint_of
from solo5_systemd.nomad.plugin_config import PluginConfig
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.nomad.proto.structs_pb2 import Attribute
from solo5_systemd.settings.solo5_toml import Settings, parse_settings

SETTINGS = parse_settings({"network": {"lab": {}, "dmz": {}}})
PLUGIN = PluginConfig()
VERSION = "1.2.3"


def look(host: Host = GOOD, settings: Settings = SETTINGS, plugin: PluginConfig = PLUGIN) -> wire.FingerprintResponse:
    return fingerprint_of(host, settings, plugin, VERSION)


def values(found: wire.FingerprintResponse) -> dict[str, object]:
    """Return the attributes, without their types."""
    return {key: getattr(each, each.WhichOneof("value") or "") for key, each in found.attributes.items()}


def test_a_good_node_tells_all_there_is() -> None:
    found = look()
    assert (found.health, found.health_description) == (HEALTHY, "Healthy")
    assert values(found) == {
        "driver.solo5.version": "1.2.3",
        "driver.solo5.systemd": 257,
        "driver.solo5.hvt": True,
        "driver.solo5.hvt.version": "0.12.1",
        "driver.solo5.hvt.abi": 2,
        "driver.solo5.hvt.path": "/usr/bin/solo5-hvt",
        "driver.solo5.spt": True,
        "driver.solo5.spt.version": "0.12.1",
        "driver.solo5.spt.abi": 2,
        "driver.solo5.spt.path": "/usr/bin/solo5-spt",
        "driver.solo5.kvm": True,
        "driver.solo5.cgroup": "v2",
        "driver.solo5.confinement": "user,capabilities,devices,files,system-calls,ip,arguments",
        "driver.solo5.block": True,
        "driver.solo5.volumes": "file-system,block-device",
        "driver.solo5.networks": "default,lab,dmz",
        "driver.solo5.logging": "nomad,journald",
    }


@pytest.mark.parametrize(
    "change, sentence",
    [
        ({"systemd": 251}, "systemd: 251. Install systemd 252 or newer."),
        ({"systemd": None}, "systemd: not found. Install systemd 252 or newer."),
        ({"booted": False}, "systemd: 257, not PID 1. Boot this machine with systemd: tasks are its units."),
        (
            {"missing": (dependency("/run/dbus/system_bus_socket"),)},
            "socket /run/dbus/system_bus_socket: missing. Install dbus (Debian), and start it: systemctl start dbus",
        ),
        (
            {"missing": (dependency("nftables"),)},
            "Python module nftables: missing. Install python3-nftables (Debian) or pip-nftables (pip).",
        ),
        ({"files": {"/a": False}}, "units and policy: 1 missing. Install the Debian package; pip alone"),
        ({"user": False}, "user solo5: missing. Create it: systemd-sysusers"),
        ({"settings": "x.toml is wrong."}, "/etc/solo5: x.toml is wrong. Correct it: see solo5.toml(5)."),
        ({"tenders": ()}, "solo5-hvt: not found. Install Solo5 (opam install solo5), and put"),
        ({"store": ("/var/lib/solo5/images", 1 << 20, 0)}, "image store: /var/lib/solo5/images, 1 MiB free. Free some"),
        ({"kernel": Kernel(run_free=0)}, "/run: 0 KiB free. Free some space: leases are kept there."),
        ({"kernel": replace(GOOD.kernel, dropping_chains=None)}, "nftables: cannot be queried. Load the kernel module"),
        ({"kernel": replace(GOOD.kernel, missing_modules=("bridge", "tun"))}, "kernel modules: bridge, tun missing."),
        ({"controllers": None}, "cgroups: version 1. Limits of tasks do not hold: boot with systemd.unified"),
        ({"controllers": ("cpu", "cpuset")}, "cgroups: version 2 without memory, pids. Limits of tasks do not hold"),
        ({"tenders": (HVT,), "devices": {"/dev/kvm": "It is closed."}}, "/dev/kvm: cannot be used. It is closed."),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)  # fmt: skip
def test_what_is_in_the_way_of_every_task_is_reported_in_one_sentence(change: dict[str, object], sentence: str) -> None:
    found = look(replace(GOOD, **change))  # type: ignore[arg-type]
    assert found.health == UNHEALTHY
    assert found.health_description.startswith(sentence)


ADVICE = "Install Solo5 (opam install solo5), and put solo5-hvt of ABI 2 into one of /usr/bin."
DROPPING = DroppingChain(name="ip filter FORWARD", bridges=("solo5-default",), remedy=("open it", "for good"))


@pytest.mark.parametrize(
    "change, attributes",
    [
        (
            {"devices": {"/dev/kvm": "It is closed."}},
            {"driver.solo5.kvm": False, "driver.solo5.kvm.problem": "It is closed.", "driver.solo5.hvt": True},
        ),
        ({"console_problem": "journald stores none."}, {"driver.solo5.logging.problem": "journald stores none."}),
        (
            {"tenders": (SPT,)},
            {"driver.solo5.hvt": False, "driver.solo5.hvt.problem": f"solo5-hvt: not found. {ADVICE}"},
        ),
        ({"tenders": (replace(HVT, abi_version=1), SPT)}, {"driver.solo5.hvt": False}),
        (
            {"kernel": replace(GOOD.kernel, dropping_chains=(DROPPING,))},
            {"driver.solo5.networks.problem": "ip filter FORWARD drops packets of solo5-default: open it && for good"},
        ),
        (
            {"kernel": replace(GOOD.kernel, forwarding_tables=("ip own",))},
            {
                "driver.solo5.forwarding.problem": "forwarding: dropped between other links, for which there is table "
                f"ip own. Have this host forward for other programs, too: {AS_ROUTER}"
            },
        ),
    ],
)
def test_what_limits_a_node_is_an_attribute_and_no_sickness(
    change: dict[str, object], attributes: Mapping[str, object]
) -> None:
    found = look(replace(GOOD, **change))  # type: ignore[arg-type]
    assert found.health == HEALTHY
    assert attributes.items() <= values(found).items()


@pytest.mark.parametrize(
    ("controllers", "version", "problem"),
    [
        (None, "v1", "limits do not hold: version 1"),
        ((), "v2", "limits do not hold: version 2 without cpu, cpuset, memory, pids"),
        (("cpu", "io", "memory", "pids"), "v2", "limits do not hold: version 2 without cpuset"),
    ],
)
def test_missing_controllers_are_an_attribute_where_the_operator_states_that_they_are_meant(
    controllers: tuple[str, ...] | None, version: str, problem: str
) -> None:
    found = look(replace(GOOD, controllers=controllers), plugin=replace(PLUGIN, allow_missing_controllers=True))
    assert (found.health, found.health_description) == (HEALTHY, "Healthy")
    assert values(found)["driver.solo5.cgroup"] == version
    assert values(found)["driver.solo5.cgroup.problem"] == problem


def test_option_that_allows_missing_controllers_is_in_the_reason() -> None:
    sentence = "or state that it is meant: plugin.solo5.config.allow_missing_controllers = true."
    assert look(replace(GOOD, controllers=())).health_description.endswith(sentence)


def test_only_the_networks_that_jobs_may_join_are_offered() -> None:
    plugin = replace(PLUGIN, networks=(NetworkName("lab"), NetworkName("nowhere")), disable_log_collection=True)
    attributes = values(look(plugin=plugin))
    assert (attributes["driver.solo5.networks"], attributes["driver.solo5.logging"]) == ("lab", "journald")


def test_each_value_is_sent_as_what_it_is() -> None:
    sent = look()
    assert sent.attributes["driver.solo5.hvt"] == Attribute(bool_val=True)
    assert sent.attributes["driver.solo5.hvt.abi"] == Attribute(int_val=2)
    assert sent.attributes["driver.solo5.cgroup"] == Attribute(string_val="v2")


def test_an_attribute_that_is_gone_is_sent_empty() -> None:
    before, found = look(), look(replace(GOOD, tenders=(SPT,)))
    sent = after(before, found)
    gone = {key for key, value in sent.attributes.items() if value == Attribute(string_val="")}
    assert gone == {f"driver.solo5.hvt.{key}" for key in ("version", "abi", "path")}
    assert Attribute(string_val="") not in after(found, found).attributes.values()
