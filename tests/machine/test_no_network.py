"""A NIC on network `none`: the image has it connected, and it leads nowhere."""

from pathlib import Path

from tests.machine.conftest import Runner, eventually, inspect, ok, says, sh
from tests.machine.declared import Declarations

NOWHERE = ("--net", "service=none")


def test_it_runs_without_an_address_and_nothing_passes(run: Runner) -> None:
    name = run("net.spt", "--ipv4=10.153.77.2/24", options=NOWHERE)
    neighbour = run("net.hvt", "--ipv4=10.153.77.3/24", options=NOWHERE)
    for each in (name, neighbour):
        says(each, "serving")
        [nic] = inspect(each)["nics"]
        assert (nic["network"], nic["ipv4"], nic["gateway4"]) == ("none", None, None)
    ok("ip", "address", "add", "10.153.77.1/24", "dev", "solo5-none")
    try:
        assert sh("ping", "-c1", "-W1", "10.153.77.2").returncode == 1
        eventually(lambda: "spoofed" in ok("solo5ctl", "network", "inspect", "none"), "what it sends is dropped")
    finally:
        ok("ip", "address", "delete", "10.153.77.1/24", "dev", "solo5-none")


def test_it_survives_solo5_networkd_and_another_nic_has_its_own(run: Runner) -> None:
    name = run("net2.spt", "{mirage.management}", options=(*NOWHERE, "--net", "management=default"))
    says(name, "serving")
    nics = inspect(name)["nics"]
    ok("systemctl", "restart", "solo5-networkd")
    assert inspect(name)["nics"] == nics
    assert not list(Path("/run/solo5/network/networks").glob("*.damaged"))


def test_a_declaration_has_it(declare: Declarations) -> None:
    ok("systemctl", "start", declare("web", "Network=service=none"))
    assert inspect("web")["nics"][0]["network"] == "none"
