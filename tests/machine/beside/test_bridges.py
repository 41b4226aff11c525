"""Programs with bridges and guests of their own, beside ours: each keeps its ways."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.machine.beside.conftest import FORWARD, WAYS, Guest, Program, doctor, remedy
from tests.machine.beside.test_filters import DOCKER
from tests.machine.conftest import Machine, Outside, Runner, eventually, ok, sh

VIRSH = "virsh -c network:///system"
LIBVIRT = Program(
    "libvirt",
    first=["systemctl start libvirtd", f"{VIRSH} net-start default"],
    again=["systemctl restart libvirtd", f"{VIRSH} net-destroy default && {VIRSH} net-start default"],
    last=[
        f"{VIRSH} net-destroy default",
        "systemctl stop libvirtd libvirtd.socket libvirtd-ro.socket libvirtd-admin.socket",
    ],
)
VFS = "podman --storage-driver vfs"  # another one needs more than an overlay below it
PODMAN = Program(
    "podman",  # with a container: netavark has its bridge and rules as long as one runs
    first=[
        "mkdir -p /etc/containers /srv/podman/bin && cp /bin/busybox /srv/podman/bin",
        r"printf '[containers]\nkeyring = false\npids_limit = 0\n' >/etc/containers/containers.conf",
        f"{VFS} run --detach --name theirs --rootfs /srv/podman /bin/busybox sleep 100000",
    ],
    again=[f"{VFS} restart --time 0 theirs"],
    last=[f"{VFS} rm --force --time 0 theirs", "rm -r /srv/podman"],
)
BRIDGES = {
    "docker": ("docker0", "172.17.0"),
    "libvirt": ("virbr0", "192.168.122"),
    "podman": ("podman0", "10.88.0"),
}


@contextmanager
def guest_of(program: Program, outside: Outside) -> Iterator["Theirs"]:
    """A machine on the bridge of a program, as its container or virtual machine is."""
    with machine_on(*BRIDGES[program.name], outside) as theirs:
        yield theirs


@contextmanager
def machine_on(bridge: str, prefix: str, outside: Outside) -> Iterator["Theirs"]:
    ok("ip", "netns", "add", "theirs")
    try:
        yield Theirs(bridge, prefix, outside)
    finally:
        ok("ip", "netns", "delete", "theirs")


class Theirs:
    def __init__(self, bridge: str, prefix: str, outside: Outside) -> None:
        self._bridge, self._prefix, self._outside = bridge, prefix, outside

    def plug(self) -> None:
        """Join the bridge, anew after this has been made again: with the spanning tree protocol it takes seconds."""
        if f" master {self._bridge} " not in sh("ip", "-o", "link", "show", "theirs").stdout:
            sh("ip", "link", "delete", "theirs")
            ok("ip", "link", "add", "theirs", "type", "veth", "peer", "name", "eth0", "netns", "theirs")
            ok("ip", "link", "set", "theirs", "master", self._bridge, "up")
            ok("ip", "-n", "theirs", "address", "add", f"{self._prefix}.99/24", "dev", "eth0")
            ok("ip", "-n", "theirs", "link", "set", "eth0", "up")
            ok("ip", "-n", "theirs", "route", "replace", "default", "via", f"{self._prefix}.1")
        eventually(lambda: self.pings(f"{self._prefix}.1"), "the bridge forwards")

    def reaches_outside(self) -> bool:
        return self.pings(self._outside.there)

    def pings(self, address: str) -> bool:
        return sh("ip", "netns", "exec", "theirs", "ping", "-c1", "-W1", address).returncode == 0


@pytest.mark.parametrize("first", ["theirs", "ours"])
@pytest.mark.parametrize("program", [DOCKER, LIBVIRT, PODMAN], ids=lambda program: program.name)
def test_a_program_that_forwards_for_its_guests_does_not_notice_us(
    machine: Machine, outside: Outside, run: Runner, program: Program, first: str
) -> None:
    """In either order, on a host that did not forward; until then, and if it ends, nothing passes between others."""
    assert FORWARD.read_text() == "0\n"
    machine.expected.append(r"net.ipv4.conf.\*.forwarding was not 1")
    with program.ending():
        if first == "theirs":
            program.do(program.first)
        guest = Guest(run, outside)
        if first == "ours":
            assert FORWARD.read_text() == "0\n", "that others need it can be told"
            program.do(program.first)
        with guest_of(program, outside) as theirs:
            theirs.plug()
            eventually(theirs.reaches_outside, "its guests reach the outside")
            if doctor()["verdict"] != "ok":  # Docker's policy
                ok("sh", "-ec", remedy())
            for again in ("true", *program.again):
                program.do([again])
                theirs.plug()
                eventually(theirs.reaches_outside, f"its guests reach the outside, {again}")
                assert guest.ways() == WAYS, again
            FORWARD.write_text("0")
            eventually(lambda: guest.ways() == WAYS, "ours do not need it")
            assert not theirs.reaches_outside(), "and open nothing that another closes"
            FORWARD.write_text("1")
            eventually(theirs.reaches_outside, "it is open again")
            ok("solo5ctl", "rm", "--force", guest.name)
            eventually(lambda: "table ip solo5" not in ok("nft", "list", "tables"), "our networks are down")
            assert theirs.reaches_outside(), "ours has not switched forwarding off"


def test_what_forwards_on_its_link_alone_does_not_notice_us(machine: Machine, outside: Outside, run: Runner) -> None:
    """As of systemd-networkd's IPv4Forwarding= in a .network file; no other link is opened by us."""
    for name in ("routed", "plain"):
        ok("ip", "link", "add", name, "type", "bridge")
        ok("ip", "link", "set", name, "up")
    ok("ip", "address", "add", "172.17.0.1/24", "dev", "routed")
    ok("ip", "address", "add", "192.168.122.1/24", "dev", "plain")
    for name in ("routed", "cable"):
        Path(f"/proc/sys/net/ipv4/conf/{name}/forwarding").write_text("1")
    ok("nft", "add table ip own; add chain ip own own { type nat hook postrouting priority 100; }")
    ok("nft", "add rule ip own own oifname cable masquerade")

    def reached() -> dict[str, bool]:
        found = {}
        for link, (_, prefix) in zip(("routed", "plain"), list(BRIDGES.values())[:2], strict=True):
            with machine_on(link, prefix, outside) as theirs:
                theirs.plug()
                found[link] = theirs.reaches_outside()
        return found

    before = reached()
    guest = Guest(run, outside)
    assert (before, reached()) == ({"routed": True, "plain": False},) * 2
    assert guest.ways() == WAYS
    Path("/proc/sys/net/ipv4/conf/cable/forwarding").write_text("0")
