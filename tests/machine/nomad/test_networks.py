"""Networks of a node in its jobs: a joined LAN, DHCP, egress lists and rates, and a task's own namespace."""

import json
from collections.abc import Iterator

import pytest
from tests.machine.conftest import GUESTS, eventually, ok, unit_property
from tests.machine.nomad.jobs import NEVER_AGAIN, Allocation, Jobs, ended, hcl, registered
from tests.machine.nomad.test_ready import PORTS
from tests.machine.nomad.test_services import service

ARGUMENTS = 'args = ["--ipv4={net.service.ipv4_cidr}"]\n'
READY = '\nready {\n  tcp = "80"\n}'


def server(network: str, arguments: str = ARGUMENTS) -> str:
    return f'unikernel = "{GUESTS}/net.hvt"\nnic "service" {{\n  network = "{network}"\n}}\n{arguments}'


@pytest.fixture
def lan(jobs: Jobs) -> Iterator[Jobs]:
    """A node with a bridge of its operator's, which networks of the plugin configuration join."""
    ok("ip", "link", "add", "br7", "type", "bridge")
    ok("ip", "link", "set", "br7", "up")
    ok("ip", "address", "add", "10.66.0.1/24", "dev", "br7")
    try:
        yield jobs
        jobs.purge()
    finally:
        ok("ip", "link", "delete", "br7")


def test_a_job_joins_the_lan_of_its_node(lan: Jobs) -> None:
    """Its service is registered at the guest's own address, and it is ready when the node reaches it there."""
    [alloc] = lan.run(hcl("joined", server("joined") + READY, task=service("joined", "driver", "80")))
    address = alloc.nic()["ipv4"].partition("/")[0]
    assert (alloc.nic()["bridge"], alloc.nic()["gateway4"]) == ("br7", None)
    assert address in [f"10.66.0.{number}" for number in range(200, 210)]
    eventually(lambda: registered("joined") == [(address, 80)], "it is registered at its own address")
    address6 = alloc.nic()["ipv6"].partition("/")[0]
    alloc.happens(f"NIC service has {address} and {address6} in network joined")
    about = json.loads(ok("solo5ctl", "network", "inspect", "--json", "joined"))[0]
    assert (about["pool"], about["ipv6"], about["bridge"]) == ("10.66.0.200-10.66.0.209", "fd66::/64", "br7")
    assert (about["pool6"], about["gateway6"]) == ("fd66::200-fd66::209", "fe80::1")
    assert alloc.nic()["ipv6"] in [f"fd66::20{number}/64" for number in range(10)]
    assert alloc.nic()["tap"] in ok("nft", "list", "set", "bridge", "solo5", "ipv6")

    alloc = ended(lan.submit(hcl("tagged", server("tagged", ""))))
    words = "bridge br7 of network tagged does not filter VLANs (vlan_filtering 0): expected 1, for VLAN 20"
    assert words in alloc.refusal()


SERVED = f'unikernel = "{GUESTS}/netdhcp.spt"\nnic "service" {{\n  network = "served"\n}}\n'
DNS = 'network {\n  dns {\n    servers = ["192.0.2.53"]\n  }\n}\n'


def console(alloc: Allocation) -> str:
    return ok("solo5ctl", "logs", alloc.name())


def test_a_job_without_arguments_gets_its_address_by_dhcp(jobs: Jobs) -> None:
    """It is ready when its published port answers: nothing of its address is in the job."""
    [alloc] = jobs.run(hcl("plain", SERVED + READY, group=NEVER_AGAIN + PORTS))
    address = alloc.nic()["ipv4"].partition("/")[0]
    name = alloc.name()
    line = f"dhcp ipv4 {address} mask 255.255.255.0 gateway {alloc.nic()['gateway4']} dns 9.9.9.9 name {name}"
    assert line in console(alloc)

    [alloc] = jobs.run(hcl("own", SERVED, group=NEVER_AGAIN + DNS))
    eventually(lambda: " dns 192.0.2.53 " in console(alloc), "it has the name server of its job")
    assert unit_property("solo5-dhcp@served.service", "ActiveState") == "active"

    elsewhere = SERVED.replace("served", "default")
    refused = ended(jobs.submit(hcl("elsewhere", elsewhere, group=NEVER_AGAIN + DNS))).refusal()
    assert "expected {dns} in an argument of the guest, or a network with dhcp = true" in refused
