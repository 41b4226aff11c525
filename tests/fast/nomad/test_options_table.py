"""Each option of the plugin's configuration is shown by a test with a real agent."""

from collections.abc import Iterator, Mapping

import pytest
from tests.support.doc_tables import missing

from solo5_systemd.nomad.config.plugin import PLUGIN
from solo5_systemd.nomad.proto.hcl_spec_pb2 import Spec

CONFIGURATION = "machine/nomad/test_configuration.py"
DEFAULTS = f"{CONFIGURATION}::test_defaults_hold_where_the_job_leaves_an_option_out"
NAMED_DISKS = "machine/nomad/test_disks.py::test_named_disks_are_those_that_the_operator_allows"
IO_LIMITS = "machine/nomad/test_disks.py::test_limits_of_disks_are_within_the_operators"
REFUSALS = f"{CONFIGURATION}::test_ceilings_networks_and_allowed_properties_refuse"
NETWORK = f"{CONFIGURATION}::test_network_and_allowed_property_are_the_tasks"
ROUTES = f"{CONFIGURATION}::test_a_job_routes_what_the_operator_permits"
NAME_SERVERS = f"{CONFIGURATION}::test_name_servers_of_a_network_are_the_guests"
REDIRECT = "machine/nomad/test_group_networks.py::test_a_guest_has_its_groups_address_where_the_node_permits_it"
DHCP = "machine/nomad/test_dhcp.py::test_a_job_without_arguments_gets_its_address_by_dhcp"
JOINED = "machine/nomad/test_joined.py::test_a_job_joins_the_lan_of_its_node"
DIRECTORIES = f"{CONFIGURATION}::test_images_and_disks_lie_below_the_operators_directories"
REMOVED = f"{CONFIGURATION}::test_unused_images_are_removed_and_no_unit_is_ended_where_that_is_disabled"
LEFT = f"{CONFIGURATION}::test_images_outcomes_and_lost_units_stay_where_that_is_chosen"
FORGOTTEN = "machine/nomad/test_orphans.py::test_tasks_that_stay_unknown_are_ended_and_those_of_others_are_not"

SHOWN: Mapping[str, str] = {
    "enabled": f"{CONFIGURATION}::test_disabled_driver_is_undetected_and_places_nothing",
    "image_paths": DIRECTORIES,
    "block_paths": DIRECTORIES,
    "tender_paths": "machine/nomad/test_options.py::test_tender_of_the_plugins_own_path_runs_services_and_scopes",
    "image_store_mb": f"{CONFIGURATION}::test_images_beyond_the_stores_room_are_refused",
    "log_namespace": DEFAULTS,
    "networks": REFUSALS,
    "network.ipv4": NETWORK,
    "network.gateway4": NETWORK,
    "network.reserved_addresses": NETWORK,
    "network.bridge": NETWORK,
    "network.mtu": NETWORK,
    "network.masquerade": NETWORK,
    "network.routed": NETWORK,
    "network.reach": NETWORK,
    "network.isolated": NETWORK,
    "network.host": NETWORK,
    "network.metadata": NETWORK,
    "network.connections": NETWORK,
    "network.fragments": NETWORK,
    "network.dhcp": DHCP,
    "network.redirect": REDIRECT,
    "network.egress": NETWORK,
    "network.rate": NETWORK,
    "network.routes": ROUTES,
    "network.dns": NAME_SERVERS,
    "network.search": NAME_SERVERS,
    "network.join": JOINED,
    "network.vlan": JOINED,
    "network.pool": JOINED,
    "network.pool6": JOINED,
    "network.ipv6": JOINED,
    "network.gateway6": NETWORK,
    "network.nat66": NETWORK,
    "network.ra": NETWORK,
    "stats_interval": f"{CONFIGURATION}::test_samples_are_at_least_an_interval_apart_however_often_nomad_collects",
    "allowed_properties": REFUSALS,
    "allowed_units": REFUSALS,
    "allowed_tenders": REFUSALS,
    "allowed_disks": NAMED_DISKS,
    "defaults.tender": DEFAULTS,
    "defaults.unit": LEFT,
    "defaults.logging": DEFAULTS,
    "defaults.quiet": DEFAULTS,
    "defaults.cpu_hard_limit": DEFAULTS,
    "defaults.properties": DEFAULTS,
    "ceilings.memory_mb": REFUSALS,
    "ceilings.nics": REFUSALS,
    "ceilings.blocks": REFUSALS,
    "ceilings.ports": REFUSALS,
    "ceilings.image_mb": REFUSALS,
    "ceilings.disk_mb": NAMED_DISKS,
    **dict.fromkeys((f"ceilings.io.{key}" for key in ("read_bps", "write_bps", "read_iops", "write_iops")), IO_LIMITS),
    "gc.enabled": LEFT,
    "gc.interval": REMOVED,
    "gc.image_age": REMOVED,
    "gc.tasks": LEFT,
    "gc.dangling_tasks.enabled": REMOVED,
    "gc.dangling_tasks.period": FORGOTTEN,
    "gc.dangling_tasks.creation_grace": FORGOTTEN,
    "gc.dangling_tasks.dry_run": LEFT,
    "allow_missing_controllers": "machine/nomad/test_node.py::test_node_whose_limits_do_not_hold_gets_no_task",
}

ELSEWHERE = {"disable_log_collection"}
"""Shown by the tests of consoles."""


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
    assert set(options(PLUGIN)) == SHOWN.keys() | ELSEWHERE


@pytest.mark.parametrize("option", SHOWN)
def test_every_test_that_is_named_is_there(option: str) -> None:
    assert missing(f"`{SHOWN[option]}`") == []
