"""NetworkManager and systemd-networkd do not manage the links of networks, whatever else they are to manage."""

from pathlib import Path

import pytest
from tests.machine.beside.conftest import WAYS, Guest, Program
from tests.machine.conftest import Machine, Outside, Runner, eventually, inspect, ok, sh

EVERY_LINK = Path("/etc/systemd/network/10-every-link.network")
CABLE = Path("/etc/systemd/network/05-cable.network")
EVERY_DEVICE = Path("/etc/NetworkManager/conf.d/10-every-device.conf")
NETWORKD = Program(
    "systemd-networkd",
    first=["systemctl start systemd-networkd"],
    again=["networkctl reload", "systemctl restart systemd-networkd", "networkctl reconfigure lo"],
    last=["systemctl stop systemd-networkd.socket systemd-networkd"],
)
NETWORK_MANAGER = Program(
    "NetworkManager",
    first=["systemctl start NetworkManager"],
    again=["nmcli general reload", "systemctl restart NetworkManager"],
    last=["systemctl stop NetworkManager"],
)
# What is configured for every link would remove the addresses of bridges, and ask the guests for a lease by DHCP.
SETTINGS = {
    "systemd-networkd": (EVERY_LINK, "[Match]\nName=*\n[Network]\nDHCP=yes\nLinkLocalAddressing=ipv6\n"),
    "NetworkManager": (EVERY_DEVICE, "[main]\nno-auto-default=\n[device-all]\nmatch-device=*\nmanaged=1\n"),
}


def state_of(program: Program, link: str) -> str:
    """Whether a program manages a link, in its words."""
    if program is NETWORKD:
        return sh("networkctl", "status", "--no-pager", link).stdout
    return sh("nmcli", "--get-values", "GENERAL.STATE", "device", "show", link).stdout


@pytest.mark.parametrize("program", [NETWORKD, NETWORK_MANAGER], ids=lambda program: program.name)
@pytest.mark.parametrize("order", ["before", "after"])
def test_links_of_networks_are_left_alone(
    machine: Machine, outside: Outside, run: Runner, program: Program, order: str
) -> None:
    file, text = SETTINGS[program.name]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    CABLE.write_text(f"[Match]\nName=cable\n[Network]\nAddress={outside.here}/24\n")
    try:
        if order == "before":
            program.do(program.first)
        guest = Guest(run, outside)
        if order == "after":
            program.do(program.first)
        [nic] = inspect(guest.name)["nics"]
        links = ["solo5-default", nic["tap"]]
        addresses = [ok("ip", "-4", "-brief", "address", "show", "dev", link) for link in links]
        for again in ("true", *program.again):
            program.do([again])
            eventually(lambda: all("unmanaged" in state_of(program, link) for link in links), "both are unmanaged")
            assert guest.ways() == WAYS, again
            assert [ok("ip", "-4", "-brief", "address", "show", "dev", link) for link in links] == addresses
    finally:
        file.unlink()
        CABLE.unlink()
        program.do(program.last)
