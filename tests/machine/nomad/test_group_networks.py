"""Groups with a network namespace of their own: guest and sidecar share its address and its loopback."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.machine.conftest import GUESTS, Machine, Outside, eventually, inspect, ok, sh, unit_property
from tests.machine.nomad.agent import CNI, NODE_ADDRESS, SECOND_ADDRESS, SIX_ADDRESS, USUAL, Agent
from tests.machine.nomad.jobs import (
    ADDRESSES,
    NEVER_AGAIN,
    SERVER,
    Allocation,
    Jobs,
    ended,
    group_hcl,
    port_hcl,
    task_hcl,
)
from tests.machine.nomad.jobs import network as network_hcl
from tests.machine.test_ipv6 import HERE, THERE

EXAMPLES = Path("/srv/examples/nomad")
NAMESPACES = Path("/run/netns")
STATE = Path("/run/solo5/network/namespaces")
FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")
WEB = f'{SERVER}\nports = ["web"]'


def network(mode: str, *ports: str) -> str:
    return NEVER_AGAIN + network_hcl(*ports, mode=mode)


WEB_PORT = port_hcl("web", to=80)
BRIDGE = network("bridge", WEB_PORT)


def sidecar(name: str, command: str, *arguments: str) -> str:
    return task_hcl(name, f'command = "{command}"\nargs = {json.dumps(arguments)}', driver="raw_exec", memory=64)


def local(*subnets: str) -> dict[str, object]:
    """Return CNI's plugin for addresses, with a range of each subnet and a default route for its family."""
    routes = [{"dst": "::/0" if ":" in subnet else "0.0.0.0/0"} for subnet in subnets]
    return {"type": "host-local", "ranges": [[{"subnet": subnet}] for subnet in subnets], "routes": routes}


PORTMAP = {"type": "portmap", "capabilities": {"portMappings": True}, "snat": True}
OF_CNI: dict[str, list[dict[str, object]]] = {
    "routed": [{"type": "ptp", "ipMasq": True, "ipam": local("10.201.0.0/24")}, PORTMAP],
    "dual": [
        {"type": "loopback"},
        {"type": "ptp", "ipMasq": True, "ipam": local("10.202.0.0/24", "fd00:202::/64")},
        PORTMAP,
    ],
}
"""Networks by their name, each with its plugins. The agent reads them when it is started."""


@pytest.fixture(scope="module", autouse=True)
def bridge(installed: Agent) -> Iterator[None]:
    """Networks of CNI, and what Nomad keeps of its first group in bridge mode: a bridge, iptables, forwarding."""
    before = FORWARDING.read_text()
    files = [CNI / f"{name}.conflist" for name in OF_CNI]
    for file, (name, plugins) in zip(files, OF_CNI.items(), strict=True):
        file.write_text(json.dumps({"cniVersion": "0.4.0", "name": name, "plugins": plugins}))
    installed.restart(USUAL)
    first = Jobs()
    first.run(group_hcl("first", sidecar("side", "/bin/sleep", "1000"), group=BRIDGE))
    first.purge()
    yield
    for file in files:
        file.unlink()
    ok("ip", "link", "delete", "nomad")
    for table in json.loads(ok("nft", "--json", "list", "tables"))["nftables"]:
        if "table" in table:
            ok("nft", "delete", "table", table["table"]["family"], table["table"]["name"])
    FORWARDING.write_text(before)


@pytest.fixture
def group(jobs: Jobs) -> Iterator[Jobs]:
    """Jobs after which no namespace, and nothing that was in one, is left."""
    before = sorted(NAMESPACES.iterdir())
    yield jobs
    jobs.purge()
    eventually(lambda: sorted(NAMESPACES.iterdir()) == before, "the namespaces are gone")
    eventually(lambda: not STATE.exists() or not list(STATE.iterdir()), "solo5-networkd has closed them")


def test_a_guest_has_its_groups_ports(group: Jobs, outside: Outside) -> None:
    [alloc] = group.run(group_hcl("bridged", task_hcl("guest", WEB), group=BRIDGE))
    number = alloc.port("web")
    eventually(lambda: "--ipv4=10." in outside.tcp(NODE_ADDRESS, number), "it answers outside")
    inside = ("ip", "netns", "exec", alloc)
    assert "--ipv4=10." in ok(*inside, "curl", "--silent", "--max-time", "5", "http://127.0.0.1:80/")
    about = inspect(alloc.name())
    assert about["network_namespace"] == f"/var/run/netns/{alloc}"
    own = alloc.name()
    assert unit_property(alloc.unit(), "NetworkNamespacePath") == f"/run/netns/solo5-{own}"
    assert about["nics"][0]["tap"] in ok(*inside, "ip", "-o", "link")
    assert about["nics"][0]["tap"] not in ok("ip", "-o", "link")


@pytest.mark.parametrize("order", [("guest", "bridged"), ("bridged", "guest")], ids=str)
def test_a_group_of_another_driver_reaches_the_outside_on_a_host_that_did_not_forward(
    group: Jobs, outside: Outside, order: tuple[str, str]
) -> None:
    """CNI sets ip_forward for its bridge, unless it finds 1: our guests leave it at 0, and drop nothing then."""
    sh("ip", "link", "delete", "nomad")
    FORWARDING.write_text("0")
    hcl = {
        "guest": group_hcl("guest", task_hcl("guest", SERVER)),
        "bridged": group_hcl("bridged", sidecar("side", "/bin/sleep", "1000"), group=network("bridge")),
    }
    allocs = {name: group.run(hcl[name])[0] for name in order}
    ping = ("ip", "netns", "exec", allocs["bridged"], "ping", "-c1", "-W1", outside.there)
    eventually(lambda: sh(*ping).returncode == 0, "it reaches the outside")


def curl(outside: Outside, url: str) -> str:
    return outside.sh("curl", "--insecure", "--silent", "--max-time", "5", url).stdout


def test_the_example_of_a_sidecar(group: Jobs, outside: Outside) -> None:
    pem = Path("/etc/ssl/private/shop.pem")
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=shop -keyout /dev/stdout 2>/dev/null"
    pem.parent.mkdir(parents=True, exist_ok=True)
    pem.write_text(ok("sh", "-c", make))
    try:
        [alloc] = group.run((EXAMPLES / "sidecar.nomad.hcl").read_text())
        number = alloc.port("https")
        eventually(lambda: "--ipv4=10." in curl(outside, f"https://{NODE_ADDRESS}:{number}/"), "the guest answers")
        group.purge()
    finally:
        pem.unlink()


@pytest.mark.parametrize(
    ("listener", "asking", "answer"),
    [
        ("UDP4-RECVFROM:9191,bind=127.0.0.1,fork", "--send", ":9191: 'datagram"),
        ("TCP4-LISTEN:9191,bind=127.0.0.1,fork", "--ask", ":9191, 9 bytes"),
    ],
)
def test_a_guest_reaches_sidecars_at_its_gateway(group: Jobs, listener: str, asking: str, answer: str) -> None:
    """As an application reaches the upstreams of its proxy, which listens at the loopback."""
    upstream = sidecar("upstream", "/usr/bin/socat", listener, "EXEC:/bin/cat")
    config = f'unikernel = "{GUESTS}/net.spt"\n'
    config += f'args = [{ADDRESSES}, "{asking}={{net.service.gateway4}}:9191"]\nports = []'
    [alloc] = group.run(group_hcl("upstream", task_hcl("guest", config), upstream, group=BRIDGE))
    alloc.says(answer)


def test_static_ports_of_a_group_are_at_the_address_of_their_host_network(group: Jobs, outside: Outside) -> None:
    """Each is the guest's by its label, beside a dynamic one; a label that is not listed leads to none."""
    ports = (
        port_hcl("fixed", static=8720, to=80),
        port_hcl("second", static=8721, to=80, host_network="second"),
        port_hcl("any", to=81),
        port_hcl("theirs", static=8722, to=82),
    )
    config = f'unikernel = "{GUESTS}/net.hvt"\nargs = [{ADDRESSES}, "--tcp=80", "--tcp=81", "--tcp=82"]\n'
    config += 'ports = ["fixed/tcp", "second", "any"]'
    [alloc] = group.run(group_hcl("static", task_hcl("guest", config), group=network("bridge", *ports)))
    eventually(lambda: outside.tcp(NODE_ADDRESS, 8720), "it answers outside")
    places = ((NODE_ADDRESS, 8720), (NODE_ADDRESS, alloc.port("any")), (SECOND_ADDRESS, 8721))
    assert [bool(outside.tcp(*place)) for place in places] == [True] * 3
    assert [outside.tcp(*place) for place in ((SECOND_ADDRESS, 8720), (NODE_ADDRESS, 8721), (NODE_ADDRESS, 8722))] == [
        "", "", "",
    ]  # fmt: skip
    assert "0.0.0.0:80-81->80-81/tcp, 0.0.0.0:80-81->80-81/udp" in ok("solo5ctl", "ps"), "in the namespace"


def test_unikernels_of_a_group_reach_each_other(group: Jobs) -> None:
    to_first = (
        f'unikernel = "{GUESTS}/net.spt"\nnic "service" {{\n  ip = "10.153.33.70"\n}}\n'
        'args = ["--ipv4={net.service.ipv4_cidr}", "--ipv4-gateway={net.service.gateway4}", "--send=10.153.33.71:7"]\n'
        "ports = []"
    )
    second = WEB + '\nnic "service" {\n  ip = "10.153.33.71"\n}'
    [alloc] = group.run(group_hcl("pair", task_hcl("guest", to_first), task_hcl("second", second), group=BRIDGE))
    alloc.says("reply from 10.153.33.71:7: 'datagram")


def test_a_network_of_cni_is_joined(group: Jobs, outside: Outside) -> None:
    [alloc] = group.run(group_hcl("cni", task_hcl("guest", WEB), group=network("cni/routed", WEB_PORT)))
    eventually(lambda: "--ipv4=10." in outside.tcp(NODE_ADDRESS, alloc.port("web")), "it answers outside")


@pytest.fixture
def dual(group: Jobs, outside: Outside) -> Iterator[str]:
    """A network of CNI by which groups have an address of each family; the other host reaches the node by both."""
    ok("ip", "address", "replace", f"{HERE}/64", "dev", "cable", "nodad")
    outside.ok("ip", "address", "replace", f"{THERE}/64", "dev", "eth0", "nodad")
    outside.ok("ip", "route", "replace", SIX_ADDRESS, "via", HERE)
    before = FORWARDING6.read_text()
    try:
        yield "cni/dual"
        group.purge()
    finally:
        outside.sh("ip", "route", "delete", SIX_ADDRESS)
        ok("ip", "address", "delete", f"{HERE}/64", "dev", "cable")
        FORWARDING6.write_text(before)  # CNI sets it, and leaves it, as it does its rules
        ok("nft", "delete table ip6 nat; add table ip6 nat")


FORWARDING6 = Path("/proc/sys/net/ipv6/conf/all/forwarding")
MIRAGE = f'unikernel = "{GUESTS}/net.hvt"\nargs = ["{{mirage}}"]\n'


def addresses6(alloc: Allocation) -> str:
    """Return the IPv6 address that CNI has given to a group."""
    shown = ok("ip", "netns", "exec", alloc, "ip", "-6", "-o", "address", "show", "eth0", "scope", "global")
    return shown.split()[3].partition("/")[0]


def test_a_guest_has_the_ports_of_a_group_with_ipv6(group: Jobs, outside: Outside, dual: str) -> None:
    """Outside, at the group's address, and at both loopbacks; IPv4 is as without it."""
    config = MIRAGE + 'ports = ["six/udp", "web"]'
    six = port_hcl("six", to=7, host_network="six")
    [alloc] = group.run(group_hcl("dual", task_hcl("guest", config), group=network(dual, WEB_PORT, six)))
    alloc.says("serving")
    [nic] = inspect(alloc.name())["nics"]
    alloc.says(f"ipv6 {nic['ipv6']}")
    assert nic["ipv6"].startswith("fd")
    eventually(lambda: "--ipv4=10." in outside.tcp(NODE_ADDRESS, alloc.port("web")), "it answers outside by IPv4")
    eventually(lambda: outside.udp(SIX_ADDRESS, alloc.port("six"), "hello") == "hello", "it answers outside by IPv6")
    for address in ("::1", addresses6(alloc)):
        answer = Outside(namespace=alloc).udp(address, 7, "hello")
        assert answer == "hello", address
    assert "--ipv6-gateway=" in ok("ip", "netns", "exec", alloc, "curl", "--silent", "http://127.0.0.1:80/")


def test_readiness_is_probed_in_the_namespace(group: Jobs) -> None:
    ready = '\nready {\n  tcp = "80"\n  interval = "1s"\n}'
    [alloc] = group.run(group_hcl("ready", task_hcl("guest", f"{SERVER}\nports = []{ready}"), group=BRIDGE))
    alloc.happens("Ready")


def test_a_group_survives_the_death_of_plugin_and_agent(
    group: Jobs, agent: Agent, outside: Outside, machine: Machine
) -> None:
    [alloc] = group.run(group_hcl("survivor", task_hcl("guest", WEB), group=BRIDGE))
    number, pid = alloc.port("web"), unit_property(alloc.unit(), "MainPID")
    # The agent (1.11) writes down a group's network once a minute, and when it is stopped: without it, it fails any
    # allocation that it finds again.
    agent.stop()
    agent.start()
    machine.expect("solo5-networkd.service: .*")
    machine.expect("failed to reattach to plugin")
    agent.kill_with_plugin()
    ok("systemctl", "kill", "--signal=KILL", "solo5-networkd.service")
    agent.start()
    eventually(lambda: alloc.task()["State"] == "running", "the agent has the task again")
    assert unit_property(alloc.unit(), "MainPID") == pid
    eventually(lambda: "--ipv4=10." in outside.tcp(NODE_ADDRESS, number), "it answers")


REFUSED = {
    "network": (
        'nic "service" {\n  network = "management"\n}',
        "NIC service is on network management, which is not in",
    ),
    "scope": ('unit = "scope"', "is a scope in network namespace"),
}


def test_what_a_namespace_has_not_is_refused(group: Jobs) -> None:
    for case, (config, _) in REFUSED.items():
        group.submit(group_hcl(case, task_hcl("guest", f"{WEB}\n{config}"), group=BRIDGE))
    for case, (_, words) in REFUSED.items():
        assert words in ended(case).refusal()
