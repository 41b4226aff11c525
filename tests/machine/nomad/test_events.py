"""The task events in `nomad alloc status`: complete, once each, and rate-limited."""

import re
from ipaddress import IPv4Interface

from tests.machine.conftest import Machine, eventually, inspect, ok, unit_property
from tests.machine.nomad.agent import Agent
from tests.machine.nomad.jobs import SERVER, Allocation, Jobs, ended, guest, hcl


def ours(alloc: Allocation) -> list[str]:
    """Return the events of this driver, in order."""
    return [said for kind, _, said in (event.partition(": ") for event in alloc.events()) if kind == "Driver"]


def test_start_has_one_event_for_each_step(jobs: Jobs, agent: Agent, machine: Machine) -> None:
    machine.expect("plugin|EOF|Unavailable|rpc error")
    [alloc] = jobs.run(hcl("told", SERVER))
    alloc.happens("Started solo5-task-")
    told = preflight, address, started = ours(alloc)
    assert "Preflight passed: net.hvt (" in preflight
    assert preflight.endswith("NIC service")
    assert re.fullmatch(r"NIC service has [0-9.]+ in network default", address)
    assert started == f"Started {alloc.unit()}, invocation {unit_property(alloc.unit(), 'InvocationID')}"
    agent.kill_plugin()
    agent.stop()
    agent.start()
    eventually(lambda: agent.driver().get("Healthy"), "the node knows of it")
    ok("nomad", "job", "stop", "-detach", "told")
    alloc.happens("Stopped on request")
    assert ours(alloc)[:-1] == told
    assert sum("Stopped on request" in said for said in ours(alloc)) == 1


def test_end_is_an_event_with_the_consoles_last_lines(jobs: Jobs) -> None:
    alloc = ended(jobs.submit(hcl("three", guest("hello.spt", "exit=3"), kind="batch")))
    alloc.happens("The guest exited with 3. Last console lines: ")
    alloc.happens("argument 1: 'exit=3'")


def test_route_of_another_program_that_takes_the_guests_packets_is_an_event_with_the_remedy(
    jobs: Jobs, machine: Machine
) -> None:
    machine.expect("network not repaired: route .* of link vpn takes the packets")
    [first] = jobs.run(hcl("first", SERVER))
    [nic] = inspect(first.name())["nics"]
    ok("ip", "link", "add", "vpn", "type", "veth", "peer", "name", "vpn-far")
    try:
        for link in ("vpn", "vpn-far"):
            ok("ip", "link", "set", link, "up")
        for half in IPv4Interface(nic["ipv4"]).network.subnets():
            ok("ip", "route", "add", str(half), "dev", "vpn")
        [alloc] = jobs.run(hcl("taken", SERVER))
        alloc.happens(" of link vpn takes the packets for ")
    finally:
        ok("ip", "link", "delete", "vpn")


def test_network_that_another_program_broke_and_ours_repaired_is_an_event(jobs: Jobs, machine: Machine) -> None:
    machine.expect("not on its bridge")
    [alloc] = jobs.run(hcl("cut-off", SERVER))
    alloc.says("serving")
    [nic] = inspect(alloc.name())["nics"]
    ok("ip", "link", "set", nic["tap"], "nomaster")
    alloc.happens("Network repaired: ")
