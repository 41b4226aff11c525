"""Each option of the plugin's configuration is shown by a test with a real agent."""

from collections.abc import Iterator, Mapping

import pytest
from tests.support.doc_tables import missing

from solo5_systemd.nomad.plugin_config import PLUGIN
from solo5_systemd.nomad.proto.hcl_spec_pb2 import Spec

CONFIGURATION = "machine/nomad/test_configuration.py"
SHOWN: Mapping[str, str] = {
    "machine/nomad/test_node.py::test_wrong_value_or_false_is_an_undetected_driver_with_the_reason": "enabled",
    f"{CONFIGURATION}::test_images_and_disks_lie_below_the_operators_directories": "image_paths block_paths",
    "machine/nomad/test_options.py::test_tender_of_the_plugins_own_path_runs_services_and_scopes": "tender_paths",
    f"{CONFIGURATION}::test_images_beyond_the_stores_room_are_refused": "image_store_mb",
    f"{CONFIGURATION}::test_defaults_hold_where_the_job_leaves_an_option_out": (
        "log_namespace defaults.tender defaults.logging defaults.quiet defaults.cpu_hard_limit defaults.properties"
    ),
    f"{CONFIGURATION}::test_ceilings_networks_and_allowed_properties_refuse": (
        "networks allowed_properties allowed_units allowed_tenders ceilings.memory_mb ceilings.nics "
        "ceilings.blocks ceilings.ports ceilings.image_mb"
    ),
    f"{CONFIGURATION}::test_network_and_allowed_property_are_the_tasks": (
        "network.ipv4 network.gateway4 network.reserved_addresses network.bridge network.mtu network.masquerade "
        "network.routed network.reach network.isolated network.host network.metadata network.connections "
        "network.fragments network.egress network.rate network.sleep network.idle_min "
        "network.gateway6 network.nat66 network.ra"
    ),
    "machine/nomad/test_networks.py::test_a_job_without_arguments_gets_its_address_by_dhcp": "network.dhcp",
    f"{CONFIGURATION}::test_a_job_routes_what_the_operator_permits": "network.routes",
    f"{CONFIGURATION}::test_name_servers_of_a_network_are_the_guests": "network.dns network.search",
    "machine/nomad/test_networks.py::test_a_job_joins_the_lan_of_its_node": (
        "network.join network.vlan network.pool network.pool6 network.ipv6"
    ),
    "machine/nomad/test_disks.py::test_named_disks_are_those_that_the_operator_allows": (
        "allowed_disks ceilings.disk_mb"
    ),
    f"{CONFIGURATION}::test_images_outcomes_and_lost_units_stay_where_that_is_chosen": (
        "defaults.unit gc.enabled gc.tasks gc.dangling_tasks.dry_run"
    ),
    "machine/nomad/test_disks.py::test_limits_of_disks_are_within_the_operators": (
        "ceilings.io.read_bps ceilings.io.write_bps ceilings.io.read_iops ceilings.io.write_iops"
    ),
    f"{CONFIGURATION}::test_unused_images_are_removed_and_no_unit_is_ended_where_that_is_disabled": (
        "gc.interval gc.image_age gc.dangling_tasks.enabled"
    ),
    "machine/nomad/test_orphans.py::test_tasks_that_stay_unknown_are_ended_and_those_of_others_are_not": (
        "gc.dangling_tasks.period gc.dangling_tasks.creation_grace"
    ),
    "machine/nomad/test_node.py::test_node_whose_limits_do_not_hold_gets_no_task": "allow_missing_controllers",
}
"""The options that each test shows."""

ELSEWHERE = {"disable_log_collection", "stats_interval"}
"""Shown by the tests of consoles, and by a stream in `test_stats_stream.py`."""


def options(spec: Spec, above: str = "") -> Iterator[str]:
    for key, value in spec.object.attributes.items():
        match value.WhichOneof("block"):
            case "block_value":
                yield from options(value.block_value.nested, f"{above}{key}.")
            case "block_map":
                yield from options(value.block_map.nested, f"{above}{key}.")
            case _:
                yield above + key


def test_every_option_of_the_plugin_has_its_test() -> None:
    shown = [option for of_test in SHOWN.values() for option in of_test.split()]
    assert sorted([*shown, *ELSEWHERE]) == sorted(options(PLUGIN))


@pytest.mark.parametrize("test", SHOWN)
def test_every_test_that_is_named_is_there(test: str) -> None:
    assert missing(f"`{test}`") == []
