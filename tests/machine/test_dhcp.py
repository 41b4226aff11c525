"""Guests that get their address by DHCP: the unit of the server, with the real dnsmasq, systemd and tasks."""

import json
import re
from ipaddress import IPv6Address, IPv6Interface
from pathlib import Path

import pytest
from tests.machine.conftest import (
    GUESTS,
    NOBODY,
    Files,
    Machine,
    Runner,
    address,
    console,
    eventually,
    exposure,
    kill_main,
    lease,
    ok,
    sh,
    unit_property,
)
from tests.machine.test_joined import SETTINGS

UNIT = "solo5-dhcp@default.service"
DHCP = '[network.default]\ndhcp = true\ndns = ["9.9.9.9"]\nsearch = ["example.org"]\n'


@pytest.fixture
def served(place: Files) -> None:
    place(SETTINGS, DHCP)


def got(name: str) -> str:
    """Return the line of a guest that has a lease."""
    eventually(lambda: "service: dhcp" in console(name), "it has a lease")
    [line] = [line for line in console(name).splitlines() if "service: dhcp" in line][-1:]
    return line


def expected(name: str, hostname: str = "") -> str:
    return (
        f"service: dhcp ipv4 {address(name)} mask 255.255.255.0 gateway {lease(name)['gateway4']} dns 9.9.9.9 "
        f"name {hostname or name} domain example.org"
    )


@pytest.mark.parametrize("target", ["hvt", "spt"])
def test_an_image_without_arguments_gets_all_that_it_is_leased(served: None, run: Runner, target: str) -> None:
    one = run(f"netdhcp.{target}", name="one")
    assert got(one) == expected(one)
    two = run(f"netdhcp.{target}", name="two", options=("--hostname", "two.example.org", "--dns", "192.0.2.53"))
    assert got(two) == expected(two, "two.example.org").replace("9.9.9.9", "192.0.2.53")
    eventually(lambda: sh("ping", "-c1", "-W1", address(two)).returncode == 0, "it answers at its address")
    assert "DHCP: yes" in ok("solo5ctl", "network", "inspect", "default")
    assert "default opens DHCP" in sh("solo5ctl", "doctor").stdout
    ok("solo5ctl", "rm", "--force", one, two)
    eventually(lambda: unit_property(UNIT, "ActiveState") == "inactive", "no server is left")


def test_the_server_is_confined(served: None, run: Runner) -> None:
    run("netdhcp.spt", name="one")
    status = Path(f"/proc/{unit_property(UNIT, 'MainPID')}/status").read_text()
    caps = {int(each, 16) for each in re.findall(r"Cap(?:Prm|Eff|Bnd|Amb):\s*([0-9a-f]+)", status)}
    assert caps == {1 << 13 | 1 << 12 | 1 << 10}, "CAP_NET_RAW, CAP_NET_ADMIN and CAP_NET_BIND_SERVICE"
    uid = re.search(r"Uid:\s+(\d+)", status)
    assert uid is not None
    assert 61184 <= int(uid[1]) <= 65519, "a user of its own"
    assert re.search(r"NoNewPrivs:\s+1", status)
    assert re.search(r"Seccomp:\s+2", status)
    assert exposure(UNIT) <= 2.0
    done = sh(*NOBODY, "ls", "/run/solo5/network/dhcp")
    assert done.returncode != 0, "addresses of guests are root's"


def test_a_killed_server_is_started_again_by_systemd(served: None, run: Runner) -> None:
    one = run("netdhcp.spt", name="one")
    got(one)
    kill_main(UNIT)
    assert sh("ping", "-c1", "-W1", address(one)).returncode == 0, "the guest has kept its address"
    two = run("netdhcp.spt", name="two")
    assert got(two) == expected(two)


def test_a_missing_server_is_named_with_its_package(machine: Machine, served: None, run: Runner) -> None:
    program = Path("/usr/sbin/dnsmasq")
    program.rename("/usr/sbin/dnsmasq.away")
    machine.expect("the network of task one cannot be attached")
    try:
        refused = run.fail("--name", "one", f"{GUESTS}/netdhcp.spt")
        facts = json.loads(sh("solo5ctl", "doctor", "--json").stdout)
    finally:
        Path("/usr/sbin/dnsmasq.away").rename(program)
    assert refused.returncode == 125
    assert "network default has dhcp = true or ra = true, but /usr/sbin/dnsmasq is missing" in refused.stderr
    assert "Install dnsmasq-base (Debian)" in refused.stderr
    [fact] = [each for each in facts if each["name"] == "program /usr/sbin/dnsmasq"]
    assert (fact["verdict"], fact["advice"]) == ("broken", "Install dnsmasq-base (Debian).")


ADVERTISED = "[network.default]\nipv6 = true\nra = true\n"


@pytest.mark.parametrize("target", ["hvt", "spt"])
def test_a_guest_gives_itself_its_leased_ipv6_address(place: Files, run: Runner, target: str) -> None:
    place(SETTINGS, ADVERTISED)
    one = run(f"net.{target}", "--ipv4={net.service.ipv4_cidr}", "--ipv6=slaac", name="one")
    eventually(lambda: "service: slaac ipv6 " in console(one), "it has an advertisement")
    [line] = [line for line in console(one).splitlines() if "slaac" in line]
    own = IPv6Interface(lease(one)["ipv6"]).ip
    assert IPv6Address(line.rpartition(" ")[2]) == own
    eventually(lambda: sh("ping", "-6", "-c1", "-W1", str(own)).returncode == 0, "it answers at its address")
    assert "Advertised: yes" in ok("solo5ctl", "network", "inspect", "default")
    assert "default opens router advertisements" in sh("solo5ctl", "doctor").stdout
    refused = run.fail("--name", "two", "--net", "service=default,ip6=fd00::7", f"{GUESTS}/net.{target}")
    assert "is outside network default" in refused.stderr
    ok("solo5ctl", "rm", "--force", one)
    eventually(lambda: unit_property(UNIT, "ActiveState") == "inactive", "no server is left")
