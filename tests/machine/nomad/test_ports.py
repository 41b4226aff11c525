"""Ports and addresses of a task, in its job and from another host."""

import json
from functools import partial

from tests.machine.conftest import GUESTS, Outside, ok
from tests.machine.nomad.agent import NODE_ADDRESS, SECOND_ADDRESS
from tests.machine.nomad.jobs import ADDRESSES, NEVER_AGAIN, Jobs, block, ended, hcl, network, port_hcl

MAC = "02:00:5e:10:00:4d"
IP = "10.98.0.77"


def server(*words: str, more: str = "") -> str:
    """Return a network guest with these arguments and options."""
    return f'unikernel = "{GUESTS}/net.hvt"\nargs = [{ADDRESSES}, {", ".join(json.dumps(w) for w in words)}]\n{more}'


def variables(*labels: str) -> str:
    """Return one argument with Nomad's environment variables of these labels."""
    keys = ("PORT", "HOST_PORT", "IP", "ADDR")
    return ";".join(f"{label}={'/'.join(f'${{NOMAD_{key}_{label}}}' for key in keys)}" for label in labels)


nic = partial(block, "nic", "service")


def test_port_without_to_is_the_hosts_port_in_the_guest(jobs: Jobs, outside: Outside) -> None:
    ports = network(
        port_hcl("plain"), port_hcl("same", to=-1), port_hcl("fixed", static=8081, to=-1), port_hcl("mapped", to=80)
    )
    labels = ("plain", "same", "fixed", "mapped")
    listens = [f"--tcp=${{NOMAD_PORT_{label}}}" for label in labels]
    [alloc] = jobs.run(hcl("same", server(*listens, variables(*labels)), group=NEVER_AGAIN + ports))
    alloc.says("serving")
    for label in labels:
        host = alloc.port(label)
        guest = 80 if label == "mapped" else host
        answer = outside.tcp(NODE_ADDRESS, host)
        assert f"{label}={guest}/{host}/{NODE_ADDRESS}/{NODE_ADDRESS}:{host}" in answer
    assert alloc.port("fixed") == 8081


def test_port_of_a_host_network_answers_at_its_address_alone(jobs: Jobs, outside: Outside) -> None:
    second, local = (
        port_hcl(label, to=80, host_network=at) for label, at in (("second", "second"), ("local", "loopback"))
    )
    ports = network(port_hcl("web", to=80), second, local)
    labels = ("web", "second", "local")
    [alloc] = jobs.run(hcl("hosts", server(variables(*labels)), group=NEVER_AGAIN + ports))
    alloc.says("serving")
    answers = {
        (label, address): outside.tcp(address, alloc.port(label))
        for label in ("web", "second")
        for address in (NODE_ADDRESS, SECOND_ADDRESS)
    }
    assert {at for at, answer in answers.items() if answer} == {("web", NODE_ADDRESS), ("second", SECOND_ADDRESS)}
    assert f";second=80/{alloc.port('second')}/{SECOND_ADDRESS}/" in answers["second", SECOND_ADDRESS]
    number = alloc.port("local")
    assert "local=80/" in ok("curl", "--silent", "--max-time", "10", f"http://127.0.0.1:{number}/")
    assert [outside.tcp(address, number) for address in (NODE_ADDRESS, SECOND_ADDRESS)] == ["", ""]


def test_a_dynamic_block_publishes_a_range_of_ports(jobs: Jobs, outside: Outside) -> None:
    ports = """
network {
  dynamic "port" {
    for_each = range(8300, 8303)
    labels   = ["p${port.value}"]
    content {
      static = port.value
    }
  }
}
"""
    listens = [f"--tcp={number}" for number in range(8300, 8303)]
    [alloc] = jobs.run(hcl("range", server(*listens), group=NEVER_AGAIN + ports))
    alloc.says("serving")
    for number in range(8300, 8303):
        assert "--tcp=8302" in outside.tcp(NODE_ADDRESS, number)
    shown = ok("solo5ctl", "ps")
    for protocol in ("tcp", "udp"):
        assert f"{NODE_ADDRESS}:8300-8302->8300-8302/{protocol}" in shown
    refused = ended(jobs.submit(hcl("unlisted", server(more='ports = ["8400-8402/tcp"]'), group=NEVER_AGAIN)))
    assert "config.ports names '8400-8402': expected one of the group's ports (none)" in refused.refusal()


def test_nic_has_the_address_and_the_mac_that_the_job_gives(jobs: Jobs, outside: Outside) -> None:
    ports = network(port_hcl("web", to=80))
    config = server(more=nic(network="management", ip=IP, mac=MAC))
    [alloc] = jobs.run(hcl("given", config, group=NEVER_AGAIN + ports))
    alloc.says("serving")
    assert f"mac {MAC}" in alloc.logs()
    assert f"--ipv4={IP}/24" in outside.tcp(NODE_ADDRESS, alloc.port("web"))
    assert MAC in ok("ip", "neighbour", "show", IP)
    refused = {
        "ip-taken": (nic(network="management", ip=IP), f"address {IP} for NIC service is taken by task guest-"),
        "mac-taken": (nic(network="management", mac=MAC), f"address {MAC} for NIC service is taken by task guest-"),
        "outside": (nic(network="management", ip="10.97.0.7"), "10.97.0.7 for NIC service is outside network"),
        "gateway": (nic(network="management", ip="10.98.0.1"), "10.98.0.1 for NIC service is its gateway's"),
        "group": (nic(mac="01:00:5e:10:00:01"), "MAC address '01:00:5e:10:00:01' is not usable"),
    }
    for name, (given, _) in refused.items():
        jobs.submit(hcl(name, server(more=given)))
    for name, (_, words) in refused.items():
        assert words in ended(name).refusal()
    assert f"--ipv4={IP}/24" in outside.tcp(NODE_ADDRESS, alloc.port("web")), "the first has kept both"
