"""Programs with bridges and guests of their own, beside ours: each keeps its ways."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.machine.beside.conftest import WAYS, Guest, Program, doctor
from tests.machine.conftest import Machine, Outside, Runner, eventually, ok, sh

ROUTER = Path("/etc/sysctl.d/50-ip-forward.conf")
VIRSH = "virsh -c network:///system"
DOCKER = Program(
    "docker",
    first=["systemctl start docker"],
    again=["systemctl restart docker"],
    last=["systemctl stop docker.socket docker containerd"],
)
LIBVIRT = Program(
    "libvirt",
    first=["systemctl start libvirtd", f"{VIRSH} net-start default"],
    again=["systemctl restart libvirtd", f"{VIRSH} net-destroy default && {VIRSH} net-start default"],
    last=[
        f"{VIRSH} net-destroy default",
        "systemctl stop libvirtd libvirtd.socket libvirtd-ro.socket libvirtd-admin.socket",
    ],
)
BRIDGES = {"docker": ("docker0", "172.17.0"), "libvirt": ("virbr0", "192.168.122")}


@contextmanager
def guest_of(program: Program, outside: Outside) -> Iterator["Theirs"]:
    """A machine on the bridge of a program, as its container or virtual machine is."""
    bridge, prefix = BRIDGES[program.name]
    ok("ip", "netns", "add", "theirs")
    try:
        yield Theirs(bridge, prefix, outside)
    finally:
        ok("ip", "netns", "delete", "theirs")


class Theirs:
    def __init__(self, bridge: str, prefix: str, outside: Outside) -> None:
        self._bridge, self._prefix, self._outside = bridge, prefix, outside

    def plug(self) -> None:
        """Join the bridge, anew after this has been made again."""
        sh("ip", "link", "delete", "theirs")
        ok("ip", "link", "add", "theirs", "type", "veth", "peer", "name", "eth0", "netns", "theirs")
        ok("ip", "link", "set", "theirs", "master", self._bridge, "up")
        ok("ip", "-n", "theirs", "address", "add", f"{self._prefix}.2/24", "dev", "eth0")
        ok("ip", "-n", "theirs", "link", "set", "eth0", "up")
        ok("ip", "-n", "theirs", "route", "replace", "default", "via", f"{self._prefix}.1")
        eventually(lambda: self.pings(f"{self._prefix}.1"), "the bridge forwards")

    def reaches_outside(self) -> bool:
        return self.pings(self._outside.there)

    def pings(self, address: str) -> bool:
        return sh("ip", "netns", "exec", "theirs", "ping", "-c1", "-W1", address).returncode == 0


@pytest.fixture
def router(machine: Machine) -> Iterator[None]:
    """The settings of sysctl.d are read when the network service starts."""
    ok("systemctl", "stop", "solo5-networkd")
    yield
    ROUTER.unlink(missing_ok=True)


@pytest.mark.usefixtures("router")
@pytest.mark.parametrize("program", [DOCKER, LIBVIRT], ids=lambda program: program.name)
def test_a_program_that_forwards_for_its_guests_is_served_too(
    machine: Machine, outside: Outside, run: Runner, program: Program
) -> None:
    """Started after us, it finds forwarding on, and takes no care of it; ours drops what is between other links."""
    guest = Guest(run, outside)
    try:
        program.do(program.first)
        with guest_of(program, outside) as theirs:
            theirs.plug()
            assert not theirs.reaches_outside()
            advice = doctor("forwarding")["advice"]
            ok("sh", "-ec", advice.partition("too: ")[2])
            for again in ("true", *program.again):
                program.do([again])
                theirs.plug()
                assert (theirs.reaches_outside(), guest.ways()) == (True, WAYS), again
            ok("solo5ctl", "rm", "--force", guest.name)
            eventually(lambda: "table ip solo5" not in ok("nft", "list", "tables"), "our networks are down")
            assert theirs.reaches_outside(), "ours has not switched forwarding off"
    finally:
        program.do(program.last)
