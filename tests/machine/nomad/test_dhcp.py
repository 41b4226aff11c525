"""Jobs whose guests get their address by DHCP."""

from tests.machine.conftest import GUESTS, eventually, ok, unit_property
from tests.machine.nomad.jobs import NEVER_AGAIN, Jobs, ended, hcl, name_of, refusal
from tests.machine.nomad.test_joined import nic
from tests.machine.nomad.test_ready import PORTS

CONFIG = f'unikernel = "{GUESTS}/netdhcp.spt"\nnic "service" {{\n  network = "served"\n}}\n'
READY = 'ready {\n  tcp = "80"\n}\n'
DNS = 'network {\n  dns {\n    servers = ["192.0.2.53"]\n  }\n}\n'


def console(alloc: str) -> str:
    return ok("solo5ctl", "logs", name_of(alloc))


def test_a_job_without_arguments_gets_its_address_by_dhcp(jobs: Jobs) -> None:
    """It is ready when its published port answers: nothing of its address is in the job."""
    [alloc] = jobs.run(hcl("plain", CONFIG + READY, group=NEVER_AGAIN + PORTS))
    address = nic(alloc)["ipv4"].partition("/")[0]
    name = name_of(alloc)
    line = f"dhcp ipv4 {address} mask 255.255.255.0 gateway {nic(alloc)['gateway4']} dns 9.9.9.9 name {name}"
    assert line in console(alloc)

    [alloc] = jobs.run(hcl("own", CONFIG, group=NEVER_AGAIN + DNS))
    eventually(lambda: " dns 192.0.2.53 " in console(alloc), "it has the name server of its job")
    assert unit_property("solo5-dhcp@served.service", "ActiveState") == "active"

    elsewhere = CONFIG.replace("served", "default")
    refused = refusal(ended(jobs.submit(hcl("elsewhere", elsewhere, group=NEVER_AGAIN + DNS))))
    assert "expected {dns} in args, or a network with dhcp = true" in refused
