"""A NIC on network `none`: the image has it connected, and it leads nowhere."""

from pathlib import Path

from tests.machine.conftest import GUESTS, Runner, eventually, inspect, ok, says, sh
from tests.machine.declared import declarations

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


def test_what_needs_a_network_is_refused(run: Runner) -> None:
    for options, words in (
        ((*NOWHERE, "--publish", "8096:80"), "it has no IPv4 address in network none. Publish the port to a NIC of"),
        (("--net", "service=none,ip=10.0.0.2"), "is requested in network none, which leads nowhere"),
    ):
        refused = run.fail(*options, f"{GUESTS}/net.spt")
        assert (refused.returncode, words in " ".join(refused.stderr.split())) == (125, True), refused.stderr


def test_a_declaration_has_it(run: Runner) -> None:
    with declarations() as declare:
        unit = declare("web", "Network=service=none")
        ok("systemctl", "start", unit)
        assert inspect("web")["nics"][0]["network"] == "none"


def test_no_network_has_its_name(run: Runner) -> None:
    settings = Path("/etc/solo5/none.toml")
    settings.write_text("[network.none]\n")
    try:
        refused = run.fail(*NOWHERE, f"{GUESTS}/net.spt")
        assert "network.none cannot be defined: expected another name" in refused.stderr
    finally:
        settings.unlink()
