"""The example declarations start, answer, and stop together, as their comments have it."""

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.machine.conftest import (
    GUESTS,
    Machine,
    Outside,
    console,
    eventually,
    inspect,
    ok,
    sh,
    systemctl,
    unit_property,
)
from tests.machine.declared import Declarations, declarations

EXAMPLES = Path(__file__).parents[2] / "examples/declared"
UNIKERNELS = Path("/srv/unikernels")
TARGET = Path("/etc/systemd/system/dns.target")


@pytest.fixture
def declare(machine: Machine) -> Iterator[Declarations]:
    UNIKERNELS.mkdir()
    for name, guest in (("web", "netdisk"), ("dns", "net"), ("vpn", "net")):
        shutil.copy(GUESTS / f"{guest}.hvt", UNIKERNELS / f"{name}.hvt")
    try:
        with declarations() as made:
            yield made
    finally:
        shutil.rmtree(UNIKERNELS)


def install(declare: Declarations, *names: str) -> None:
    for name in names:
        declare.write(name, (EXAMPLES / f"{name}.unikernel").read_text())
    systemctl("daemon-reload")


def stopped(unit: str) -> bool:
    return unit_property(unit, "ActiveState") == "inactive"


def test_the_web_site_answers_at_both_ports_and_keeps_its_disk(declare: Declarations, outside: Outside) -> None:
    install(declare, "web")
    ok("systemctl", "enable", "--now", "web")
    try:
        for port in (80, 443):
            eventually(partial(outside.tcp, outside.here, port), f"it answers at port {port}")
        ok("systemctl", "restart", "web")
        eventually(lambda: outside.tcp(outside.here, 443), "it answers again")
        [disk] = inspect("web")["disks"]
        assert disk["path"].endswith("/web")
        assert Path("/var/lib/solo5/disks/web").stat().st_size == 64 << 20
    finally:
        ok("systemctl", "stop", "web")
        eventually(lambda: sh("solo5ctl", "disk", "rm", "web").returncode == 0, "the disk is free")


def test_the_network_behind_the_vpn_is_routed_to_it_while_it_runs(declare: Declarations, outside: Outside) -> None:
    text = (EXAMPLES / "vpn.unikernel").read_text()
    permitted = Path("/etc/solo5/vpn.toml")
    permitted.write_text("".join(f"{line[4:]}\n" for line in text.splitlines() if line.startswith("#   ")))
    try:
        install(declare, "vpn")
        ok("systemctl", "start", "vpn")
        [nic] = inspect("vpn")["nics"]
        assert f"via {nic['ipv4'].partition('/')[0]} dev solo5-default" in ok("ip", "route", "get", "192.168.2.7")
        eventually(lambda: outside.udp(outside.here, 51820, "hello") == "hello", "it answers outside")
        ok("systemctl", "stop", "vpn")
        eventually(lambda: not ok("ip", "route", "show", "192.168.2.0/24"), "the route is gone")
    finally:
        permitted.unlink()


def test_the_dns_servers_start_in_order_and_stop_with_their_target(declare: Declarations, outside: Outside) -> None:
    install(declare, "dns-primary", "dns-secondary")
    shutil.copy(EXAMPLES / "dns.target", TARGET)
    systemctl("daemon-reload")
    try:
        ok("systemctl", "enable", "dns-primary", "dns-secondary")
        ok("systemctl", "enable", "--now", "dns.target")
        for port in (53, 5353):
            eventually(partial(outside.udp, outside.here, port, "query"), f"a server answers at port {port}")
        began = {
            name: int(unit_property(f"dns-{name}.service", "ExecMainStartTimestampMonotonic"))
            for name in ("primary", "secondary")
        }
        assert began["primary"] < began["secondary"]
        assert "ipv4 10.153.0.54/24" in console("dns-secondary")
        ok("systemctl", "restart", "dns.target")
        eventually(partial(outside.udp, outside.here, 5353, "query"), "it answers again")
        ok("systemctl", "stop", "dns.target")
        for name in began:
            eventually(partial(stopped, f"dns-{name}.service"), "it stops with its target")
    finally:
        sh("systemctl", "disable", "--now", "dns.target")
        TARGET.unlink()
        systemctl("daemon-reload")


def test_a_broken_primary_does_not_keep_the_secondary_down(declare: Declarations, outside: Outside) -> None:
    install(declare, "dns-primary", "dns-secondary")
    declare.write("dns-primary", (EXAMPLES / "dns-primary.unikernel").read_text().replace("dns.hvt", "missing.hvt"))
    systemctl("daemon-reload")
    ok("systemctl", "start", "dns-secondary")
    eventually(partial(outside.udp, outside.here, 5353, "query"), "it answers")
    assert unit_property("dns-primary.service", "ActiveState") != "active"
