"""docs/nomad*.md have each event, property, placeholder and attribute, as in the code."""

import re
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest
from tests.fast.host.test_checks import GOOD
from tests.support.fakes.tasks import LEASE, PORTS

from solo5_systemd.base.names import DeviceName, NetworkName, TaskName
from solo5_systemd.network.endpoints import UNREPAIRED
from solo5_systemd.network.model import PortRequest, Protocol, Reservation
from solo5_systemd.network.network_ranges import Overtaken
from solo5_systemd.nomad import event_messages
from solo5_systemd.nomad.event_messages import TaskEvent
from solo5_systemd.nomad.fingerprint import fingerprint_of
from solo5_systemd.nomad.plugin_config import TIGHTENING, PluginConfig
from solo5_systemd.nomad.start import SLOW_START_S
from solo5_systemd.settings.resolver import ntp_servers, resolver
from solo5_systemd.settings.solo5_toml import Settings
from solo5_systemd.task.placeholders import mirage, placeholders
from solo5_systemd.task.workload import Publish, Workload

MANUAL = "".join(page.read_text() for page in sorted((Path(__file__).parents[3] / "docs").glob("nomad*.md")))
TAKEN = Overtaken(
    network=NetworkName("default"),
    bridge="solo5-default",
    inside=IPv4Network("10.88.0.0/16"),
    guest=IPv4Address("10.88.5.7"),
    route="route 10.88.5.0/24 of link wg0",
)


def section(title: str) -> str:
    _, found, text = MANUAL.partition(f"\n## {title}\n")
    assert found, f"docs/nomad*.md have no section {title!r}"
    return re.split(r"\n##? ", text, maxsplit=1)[0]


TWO_NICS = Reservation(
    task=TaskName("web"),
    leases=(LEASE, replace(LEASE, nic=DeviceName("management"))),
    ports=tuple(
        PortRequest(nic=DeviceName(nic), host_port=port, port=80, protocol=Protocol.TCP)
        for nic, port in (("service", 8080), ("management", 8081))
    ),
)
WEB = Workload(name=TaskName("web"), image="/srv/app")
HTTP = Publish(host_port=80, port=80)
EVENTS = [
    event_messages.started("solo5-task-web.service", "4058f4bd"),
    event_messages.slow_start("reserving addresses", SLOW_START_S[0]),
    event_messages.ready("tcp 10.89.0.2:80 answers", 1.2),
    event_messages.not_ready("tcp 10.89.0.2:80", "no answer within 2 s", restart=False),
    event_messages.ready_again("tcp 10.89.0.2:80 answers", 12),
    event_messages.network_repaired(f"{UNREPAIRED}{TAKEN}"),
    event_messages.network_repaired("another program changed nftables: tables ip solo5 and bridge solo5 are rebuilt"),
    event_messages.sleep_changed("no packet for its idle time", asleep=True),
    event_messages.sleep_changed("TCP 192.0.2.9:41234 to 10.89.0.2:80", asleep=False),
    event_messages.lines_dropped(12),
    event_messages.signal_not_sent(1),
    event_messages.leases_attached([LEASE]),
    *event_messages.limits(
        replace(WEB, namespace="/run/a", resolver=resolver(["9.9.9.9"], ["lan"]), publish=(HTTP,)), None
    ),
    *event_messages.limits(WEB, TWO_NICS),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.message.partition(" ")[0])
def test_every_event_is_shown_as_it_is(event: TaskEvent) -> None:
    shown = re.sub(r"-849f3877-cf0163c1b450|(?<=4058f4bd)[0-9a-f]+", "", section("Events"))
    assert f"`{event.message}`" in shown


def test_every_property_that_a_job_may_set_is_named() -> None:
    assert [name for name in TIGHTENING if f"`{name}`" not in section("Unit properties")] == []


def test_every_placeholder_is_named() -> None:
    text = section("Placeholders").replace("NIC}", "service}").replace("net.NIC.", "net.service.")
    text = text.replace("port.LABEL", "port.http").replace("PORT/udp", "53/udp")
    servers = replace(resolver(["9.9.9.9"], ["lan"]), ntp=ntp_servers(["192.0.2.123"]))
    names = placeholders(TaskName("web"), 64, [LEASE], ports=PORTS, labels=[("http", 80)], resolver=servers)
    assert [name for name in (*names, *mirage([LEASE])) if f"`{{{name}}}`" not in text] == []


def test_every_attribute_is_named() -> None:
    text = section("Attributes for constraints")
    attributes = fingerprint_of(GOOD, Settings(), PluginConfig(), "1.2.3").attributes
    names = {name.removeprefix("driver.solo5.") for name in attributes}
    unnamed = {name for name in names if not re.search(rf"`(driver\.solo5)?\.{re.escape(name)}`", text)}
    assert unnamed == {f"{tender}.{what}" for tender in ("hvt", "spt") for what in ("path", "version", "abi")}
    assert all(f"`.{what}`" in text for what in ("path", "version", "abi"))
