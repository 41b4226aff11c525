"""IPv6 end to end: a guest of systemd with both addresses, and a client on another link."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.machine.conftest import GUESTS, Files, Outside, Runner, eventually, inspect, lease, ok, sh
from tests.machine.test_network import GATEWAY, IPV4

IPV6 = ("--ipv6={net.service.ipv6_cidr}", "--ipv6-gateway={net.service.gateway6}")
CONF = Path("/proc/sys/net/ipv6/conf")
HERE, THERE = "2001:db8:f::1", "2001:db8:f::2"


@pytest.fixture
def six(place: Files) -> Iterator[None]:
    """IPv6 on the default network."""
    place("/etc/solo5/machine-test.toml", "[network.default]\nipv6 = true\n")
    before = {path: path.read_text() for path in CONF.glob("*/accept_ra")}
    yield
    after = {path: path.read_text() for path in before if path.exists()}
    assert after == {path: text for path, text in before.items() if path in after}
    assert (CONF / "all/forwarding").read_text() == "0\n"


@pytest.fixture
def wan(outside: Outside) -> Outside:
    """The other host with an address of IPv6."""
    ok("ip", "address", "add", f"{HERE}/64", "dev", "cable", "nodad")
    outside.ok("ip", "address", "add", f"{THERE}/64", "dev", "eth0", "nodad")
    return outside


@pytest.mark.usefixtures("six")
def test_a_guest_has_both_addresses_and_its_port_answers_at_both(run: Runner, wan: Outside) -> None:
    task = run(
        "net.hvt", IPV4, GATEWAY, *IPV6, options=("--publish", "5307:7/udp", "--publish", f"[{HERE}]:5308:7/udp")
    )
    nic = lease(task)
    address = str(nic["ipv6"]).partition("/")[0]
    eventually(lambda: sh("ping", "-6", "-c1", "-W1", address).returncode == 0, f"{task} answers a ping by IPv6")
    assert wan.udp(wan.here, 5307, "hello") == "hello"
    assert [wan.udp(HERE, port, "hello") for port in (5307, 5308)] == ["hello", "hello"]
    assert re.fullmatch(r"fd[0-9a-f:]+/64", str(nic["ipv6"]))
    [network] = json.loads(ok("solo5ctl", "network", "inspect", "--json", "default"))
    assert network["gateway6"] == nic["gateway6"]
    assert [each["ipv6"] for each in network["leases"] if each["task"] == task] == [address]
    assert f"[{HERE}]:5308->7/udp" in ok("solo5ctl", "ps")
    # After a restart by systemd, and of the network service, it is the same guest.
    ok("systemctl", "restart", "solo5-networkd")
    ok("systemctl", "restart", f"solo5-task-{task}.service")
    assert inspect(task)["nics"] == [nic]
    eventually(lambda: wan.udp(HERE, 5307, "hello") == "hello", f"{task} answers at its published port by IPv6")


def test_a_guest_has_ipv6_alone(run: Runner, wan: Outside, place: Files) -> None:
    place("/etc/solo5/machine-test.toml", "[network.alone]\nipv4 = false\nipv6 = true\n")
    options = ("--net", "service=alone", "--publish", "5307:7/udp")
    task = run("net.spt", *IPV6, options=options)
    nic = lease(task)
    assert (nic["ipv4"], nic["gateway4"]) == (None, None)
    address = str(nic["ipv6"]).partition("/")[0]
    eventually(lambda: wan.udp(HERE, 5307, "hello") == "hello", f"{task} answers at its published port by IPv6")
    [row] = [line for line in ok("solo5ctl", "ps").splitlines() if line.startswith(task)]
    assert address in row
    assert "none: IPv6 only" in ok("solo5ctl", "network", "alone")
    for words, reason in (
        (("{net.service.ipv4_cidr}",), "NIC service has no leased IPv4 address in network alone"),
        ((), "it has no IPv4 address in network alone"),
    ):
        refused = ("--publish", "127.0.0.1:5309:7/udp") if not words else ()
        result = sh("solo5ctl", "run", "--net", "service=alone", *refused, f"{GUESTS}/net.spt", *words)
        assert (result.returncode, reason in result.stderr) == (125, True), result.stderr
    ok("systemctl", "restart", "solo5-networkd", f"solo5-task-{task}.service")
    assert inspect(task)["nics"] == [nic]
    eventually(lambda: wan.udp(HERE, 5307, "hello") == "hello", f"{task} answers after a restart")
    ok("solo5ctl", "rm", "--force", task)
