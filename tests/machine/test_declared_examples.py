"""The example declarations start, answer, and stop together, as their comments have it."""

from functools import partial
from pathlib import Path

import pytest
from tests.machine.conftest import GUESTS, Files, Outside, console, eventually, inspect, ok, systemctl, unit_property
from tests.machine.declared import Declarations, status

EXAMPLES = Path(__file__).parents[2] / "examples/declared"


@pytest.fixture(autouse=True)
def unikernels(place: Files) -> None:
    for name, guest in (("web", "netdisk"), ("dns", "net"), ("vpn", "net")):
        place(f"/srv/unikernels/{name}.hvt", (GUESTS / f"{guest}.hvt").read_bytes())


def install(declare: Declarations, *names: str) -> None:
    for name in names:
        declare.write(name, (EXAMPLES / f"{name}.unikernel").read_text())
    systemctl("daemon-reload")


def stopped(unit: str) -> bool:
    return unit_property(unit, "ActiveState") == "inactive"


def test_the_web_site_answers_at_both_ports_and_keeps_its_disk(declare: Declarations, outside: Outside) -> None:
    install(declare, "web")
    ok("systemctl", "enable", "--now", "web")
    for port in (80, 443):
        eventually(partial(outside.tcp, outside.here, port), f"it answers at port {port}")
    ok("systemctl", "restart", "web")
    eventually(lambda: outside.tcp(outside.here, 443), "it answers again")
    [disk] = inspect("web")["disks"]
    assert disk["path"].endswith("/web")
    assert Path("/var/lib/solo5/disks/web").stat().st_size == 64 << 20


def test_the_network_behind_the_vpn_is_routed_to_it_while_it_runs(
    declare: Declarations, outside: Outside, place: Files
) -> None:
    text = (EXAMPLES / "vpn.unikernel").read_text()
    permitted = "".join(f"{line[4:]}\n" for line in text.splitlines() if line.startswith("#   "))
    place("/etc/solo5/vpn.toml", permitted)
    install(declare, "vpn")
    ok("systemctl", "start", "vpn")
    [nic] = inspect("vpn")["nics"]
    assert f"via {nic['ipv4'].partition('/')[0]} dev solo5-default" in ok("ip", "route", "get", "192.168.2.7")
    eventually(lambda: outside.udp(outside.here, 51820, "hello") == "hello", "it answers outside")
    ok("systemctl", "stop", "vpn")
    eventually(lambda: not ok("ip", "route", "show", "192.168.2.0/24"), "the route is gone")


def test_the_dns_servers_start_in_order_and_stop_with_their_target(
    declare: Declarations, outside: Outside, place: Files
) -> None:
    install(declare, "dns-primary", "dns-secondary")
    place("/etc/systemd/system/dns.target", (EXAMPLES / "dns.target").read_text())
    systemctl("daemon-reload")
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
    ok("systemctl", "disable", "dns.target")


def test_the_template_has_three_instances(declare: Declarations, outside: Outside, place: Files) -> None:
    place("/srv/unikernels/web.hvt", (GUESTS / "net.hvt").read_bytes())  # without a disk
    install(declare, "web@")
    ok("systemctl", "start", "web@1", "web@2", "web@3")
    for port in (8081, 8082, 8083):
        eventually(partial(outside.tcp, outside.here, port), f"it answers at port {port}")
    assert "Web site 2" in status("web@2")


def test_a_broken_primary_does_not_keep_the_secondary_down(declare: Declarations, outside: Outside) -> None:
    install(declare, "dns-primary", "dns-secondary")
    declare.write("dns-primary", (EXAMPLES / "dns-primary.unikernel").read_text().replace("dns.hvt", "missing.hvt"))
    systemctl("daemon-reload")
    ok("systemctl", "start", "dns-secondary")
    eventually(partial(outside.udp, outside.here, 5353, "query"), "it answers")
    assert unit_property("dns-primary.service", "ActiveState") != "active"
