"""Services of tasks, in Nomad's own registry: when they are registered, and where."""

import pytest
from tests.machine.conftest import GUESTS, Outside, eventually, inspect, ok
from tests.machine.nomad.agent import NODE_ADDRESS, Agent
from tests.machine.nomad.jobs import (
    ADDRESSES,
    NEVER_AGAIN,
    Allocation,
    Jobs,
    block,
    guest,
    hcl,
    network,
    placed,
    port_hcl,
    registered,
    running,
)
from tests.machine.nomad.test_ready import ready

PORTS = NEVER_AGAIN + network(port_hcl("web", to=80), port_hcl("plain"))
CHECK = block("check", type="http", path="/", interval="1s", timeout="2s")


def service(name: str, mode: str, label: str = "web", more: str = "") -> str:
    return block("service", name=name, provider="nomad", port=label, address_mode=mode, more=more)


def nics(alloc: Allocation) -> dict[str, str]:
    """Return the addresses of the guest's NICs."""
    return {nic["nic"]: nic["ipv4"].partition("/")[0] for nic in inspect(alloc.name())["nics"]}


def passes(alloc: Allocation, checks: int = 1) -> None:
    """Wait until the service's checks pass."""
    eventually(lambda: ok("nomad", "alloc", "checks", alloc).count("success") == checks, "the checks pass")


def test_service_is_there_from_readiness_to_the_stop(jobs: Jobs, outside: Outside) -> None:
    """The guest is ready by the first connection to it, which the test makes (Nomad's checks would make one before)."""
    config = f'unikernel = "{GUESTS}/net.hvt"\nargs = ["--verbose", {ADDRESSES}]'
    rule = ready('console = "to port 80$"', 'deadline = "5m"')
    modes = ("auto", "host", "driver")
    services = [*(service(mode, mode) for mode in modes), service("plain", "driver", "plain")]
    jobs.submit(hcl("served", config + rule, group=PORTS, task="".join(services)))
    alloc = placed("served")
    alloc.written("serving")
    assert [registered(name) for name in (*modes, "plain")] == [[]] * 4
    assert alloc.about()["ClientStatus"] == "pending"
    assert "--ipv4=" in outside.tcp(NODE_ADDRESS, alloc.port("web"))
    running("served")
    own, node = (nics(alloc)["service"], 80), (NODE_ADDRESS, alloc.port("web"))
    for name, expected in {"auto": node, "host": node, "driver": own, "plain": (own[0], 0)}.items():
        eventually(lambda at=expected, name=name: registered(name) == [at], f"{name} is at {expected}")  # type: ignore[misc]
    ok("nomad", "job", "stop", "-detach", "served")
    for name in (*modes, "plain"):
        eventually(lambda name=name: registered(name) == [], f"{name} is not registered any more")  # type: ignore[misc]


@pytest.mark.parametrize("lead_to", ["management", "both"])
def test_driver_address_is_that_of_the_nic_that_the_ports_lead_to(
    jobs: Jobs, agent: Agent, outside: Outside, lead_to: str
) -> None:
    args = ("--ipv4={net.service.ipv4_cidr}", "--management-ipv4={net.management.ipv4_cidr}")
    both = block("nic", "service", ports=["plain"] if lead_to == "both" else [])
    both += block("nic", "management", network="management", ports=["web"])
    config = guest("net2.spt", *args, more=both)
    since = ok("date", "+@%s.%N").strip()
    [alloc] = jobs.run(hcl(lead_to, config, group=PORTS, task=service("admin", "driver", more=CHECK)))
    alloc.says("serving")
    assert "--management-ipv4=" in outside.tcp(NODE_ADDRESS, alloc.port("web"))
    if lead_to == "management":
        eventually(lambda: registered("admin") == [(nics(alloc)["management"], 80)], "it is at that NIC's address")
        passes(alloc)
        assert not any("No address for" in event for event in alloc.events())
    else:
        assert any("NICs service, management have published ports" in event for event in alloc.events())
        eventually(lambda: "no driver network exists" in agent.log(since), "Nomad refuses to register it")
        assert registered("admin") == []
