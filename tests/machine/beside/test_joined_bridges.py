"""Guests on the bridges of libvirt, systemd-networkd and NetworkManager, which their owners reload and make again."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.machine.beside.conftest import Program
from tests.machine.beside.test_bridges import LIBVIRT, VIRSH, Theirs
from tests.machine.beside.test_managers import NETWORK_MANAGER, NETWORKD
from tests.machine.conftest import Files, Machine, Outside, Runner, eventually, inspect, ok
from tests.machine.test_joined import IPV4, ON_LAN, SETTINGS

PREFIX = "198.18.7"
UNITS = {
    "20-lan.netdev": "[NetDev]\nName=lan0\nKind=bridge\n",
    "20-lan.network": f"[Match]\nName=lan0\n[Network]\nAddress={PREFIX}.1/24\nConfigureWithoutCarrier=yes\n",
}
PROFILE = f"type bridge con-name lan ifname lan0 ipv4.method manual ipv4.addresses {PREFIX}.1/24 bridge.stp no"


@dataclass(frozen=True)
class Owner:
    """A program with a bridge.

    Attributes:
        made: the commands that make the bridge, once the program runs.
        again: those that reload or restart the program, or make the bridge anew.
        unmade: those that delete it.
    """

    program: Program
    bridge: str
    prefix: str
    made: tuple[str, ...]
    again: tuple[str, ...]
    unmade: tuple[str, ...]


OWNERS = [
    Owner(
        LIBVIRT,
        "virbr0",
        "192.168.122",
        made=(),
        again=("systemctl restart libvirtd", f"{VIRSH} net-destroy default && {VIRSH} net-start default"),
        unmade=(),
    ),
    Owner(
        NETWORKD,
        "lan0",
        PREFIX,
        made=("networkctl reload",),
        again=(
            "networkctl reload",
            "networkctl reconfigure lan0",
            "systemctl restart systemd-networkd",
            "ip link delete lan0 && systemctl restart systemd-networkd",
        ),
        unmade=("ip link delete lan0",),
    ),
    Owner(
        NETWORK_MANAGER,
        "lan0",
        PREFIX,
        made=(f"nmcli connection add {PROFILE}", "nmcli connection up lan"),
        again=(
            "nmcli general reload",
            "nmcli connection up lan",
            "systemctl restart NetworkManager",
            "nmcli connection down lan && nmcli connection up lan",
        ),
        unmade=("nmcli connection delete lan",),
    ),
]


@contextmanager
def running(owner: Owner) -> Iterator[None]:
    with ExitStack() as stack:
        if owner.program is NETWORKD:
            for name, text in UNITS.items():
                file = Path("/etc/systemd/network", name)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
                stack.callback(file.unlink)
        stack.enter_context(owner.program.ending())
        owner.program.do(owner.program.first)
        owner.program.do(owner.made)
        stack.callback(owner.program.do, owner.unmade)
        eventually(lambda: f"{owner.prefix}.1/24" in ok("ip", "-4", "address"), "the bridge has its address")
        ok("ip", "netns", "add", "theirs")
        stack.callback(ok, "ip", "netns", "delete", "theirs")
        yield


@pytest.mark.parametrize("owner", OWNERS, ids=lambda owner: owner.program.name)
def test_a_guest_stays_on_a_bridge_whose_owner_reloads_or_remakes_it(
    machine: Machine, outside: Outside, place: Files, run: Runner, owner: Owner
) -> None:
    address = f"{owner.prefix}.77"
    machine.expect("network repaired: tap .* was missing, down or not on its bridge")
    place(SETTINGS, f'[network.lan]\njoin = "{owner.bridge}"\nipv4 = "{owner.prefix}.0/24"\n')
    with running(owner):
        theirs = Theirs(owner.bridge, owner.prefix, outside)
        theirs.plug()
        before = about(owner.bridge)
        name = run("net.spt", IPV4, options=(*ON_LAN[:1], f"{ON_LAN[1]},ip={address}"))
        [nic] = inspect(name)["nics"]
        for again in ("true", *owner.again):
            owner.program.do([again])
            eventually(lambda: f"{owner.prefix}.1/24" in ok("ip", "-4", "address"), "the bridge has its address")
            theirs.plug()
            eventually(lambda: theirs.pings(address), f"a machine of the bridge reaches the guest: {again}")
            assert f"master {owner.bridge}" in ok("ip", "-o", "link", "show", str(nic["tap"]))
            assert about(owner.bridge) == before, again
        ok("solo5ctl", "rm", "--force", name)
        assert about(owner.bridge) == before
        assert theirs.pings(f"{owner.prefix}.1")


def about(bridge: str) -> object:
    """The addresses of a bridge and what of it a joined network could have changed."""
    [found] = json.loads(ok("ip", "-json", "-details", "address", "show", "dev", bridge))
    data = found["linkinfo"]["info_data"]
    kept = {key: data[key] for key in ("stp_state", "vlan_filtering", "forward_delay", "mcast_snooping")}
    return [each["local"] for each in found["addr_info"] if each["family"] == "inet"], found["mtu"], kept
