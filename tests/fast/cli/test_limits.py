"""Egress, rate limits, dropped packets and repairs, as `solo5ctl` takes and shows them."""

import json
from dataclasses import replace
from ipaddress import IPv4Address
from typing import Any

import pytest
from tests.fast.cli.conftest import Solo5ctl
from tests.fast.cli.test_stats import FULL
from tests.support.fakes.engine import FakeRuntime
from tests.support.fakes.tasks import LEASE, NETWORK, endpoints, running

from solo5_systemd.base.names import NetworkName, TaskName
from solo5_systemd.cli.metric_families import families
from solo5_systemd.cli.task_output import task_fields, task_json
from solo5_systemd.cli.verbs.stats import usage_json
from solo5_systemd.network.drops import Dropped, of_nics
from solo5_systemd.network.model import Limits, Reservation
from solo5_systemd.network.overview import Repair
from solo5_systemd.settings.addresses import routes
from solo5_systemd.settings.egress import egress
from solo5_systemd.settings.network_policy import NetworkPolicy
from solo5_systemd.settings.rate import Rate
from solo5_systemd.settings.resolver import resolver

WEB = TaskName("web")
LIMITS = Limits(egress=egress(["10.0.0.0/8:5432/tcp"]), rate=Rate(sent=10**6))
ADDRESS = IPv4Address("10.89.0.2")
COUNTED = Dropped(rules={("egress", str(ADDRESS)): 7, ("sent_rate", LEASE.tap): 8, ("spoofed", LEASE.tap): 9})
REPAIRS = (
    Repair(time=1_700_000_000_000_000, what="tap s5-x was missing", tasks=(WEB,), others=2),
    Repair(time=1_600_000_000_000_000, what="bridge b of network default was missing", tasks=()),
    Repair(time=1_500_000_000_000_000, what="bridge c of network other was missing", tasks=(TaskName("x"),)),
)


@pytest.fixture
def engine() -> FakeRuntime:
    web = running("web", networked=True)
    assert web.reservation is not None
    web = web._replace(reservation=replace(web.reservation, leases=(replace(LEASE, limits=LIMITS),)))
    engine = FakeRuntime(web)
    policy = NetworkPolicy(egress=egress(["10.0.0.0/8"]), rate=Rate(sent=10**7))
    shown = replace(NETWORK, policy=policy, dropped=COUNTED, resolver=resolver(["9.9.9.9"], ["example.org"]))
    engine.machine.networks.overview = (shown,)
    engine.machine.networks.recorded = REPAIRS
    return engine


def test_options_of_run_are_in_the_workload(solo5ctl: Solo5ctl) -> None:
    solo5ctl("run", "-d", "--egress", "10.0.0.0/8:5432/tcp", "--rate", "sent=1M", "/srv/web.hvt")
    [started] = solo5ctl.engine.workloads
    assert started.limits == LIMITS
    solo5ctl("run", "-d", "--egress", "none", "/srv/web.hvt")
    assert solo5ctl.engine.workloads[-1].limits == Limits(egress=())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--egress", "example.org"), "egress 'example.org' is not a destination"),
        (("--egress", "none", "--egress", "10.0.0.1"), "'none' and other entries"),
        (("--rate", "fast"), "rate 'fast' is not a limit"),
        (("--rate", "sent=1M", "--rate", "sent=2M"), "rate 'sent=2M' is not a limit"),
    ],
)
def test_a_limit_that_is_wrong_is_one_sentence(solo5ctl: Solo5ctl, options: tuple[str, ...], words: str) -> None:
    result = solo5ctl("run", "-d", *options, "/srv/web.hvt")
    assert (result.status, len(result.err.splitlines())) == (125, 1)
    assert words in result.err


def test_a_network_shows_its_limits_drops_ports_and_repairs(solo5ctl: Solo5ctl) -> None:
    text = solo5ctl("network", "default").out
    for line in (
        "Egress: 10.0.0.0/8", "Rate limits: sent=10M", "Name servers: 9.9.9.9", "Search domains: example.org",
        "Drops: egress 7 (packets for destinations that are not listed)",
        "Drops: spoofed 9 (frames with another source than the leased one, or another protocol)",
    ):  # fmt: skip
        assert f" {line}\n" in f" {text}".replace("\n", "\n ")
    assert "tap s5-x was missing\n" in text
    assert "bridge b of network default was missing\n" in text
    assert "network other" not in text
    (document,) = json.loads(solo5ctl("network", "--json", "default").out)
    assert (document["dns"], document["search"]) == (["9.9.9.9"], ["example.org"])
    assert (document["egress"], document["rate"]) == (["10.0.0.0/8"], ["sent=10M"])
    assert (document["drops"]["egress"], document["drops"]["closed"]) == (7, 0)
    assert [each["repair"] for each in document["repairs"]] == [each.what for each in REPAIRS[:2]]
    assert {port["task"] for port in document["ports"]} == {"web"}


def test_repairs_are_listed_with_their_time(solo5ctl: Solo5ctl) -> None:
    lines = solo5ctl("network", "repairs").out.splitlines()
    assert lines[0].split() == ["TIME", "REPAIR", "TASKS"]
    assert lines[1].startswith("2023-11-14")
    assert lines[1].endswith("web, 2 others")
    [first, *_] = json.loads(solo5ctl("network", "repairs", "--json").out)
    assert (first["repair"], first["tasks"], first["other_tasks"]) == ("tap s5-x was missing", ["web"], 2)


def test_a_task_shows_its_limits_and_what_they_dropped() -> None:
    task = running("web", networked=True)

    def having(limits: Limits) -> Reservation:
        return Reservation(task=WEB, leases=(replace(LEASE, limits=limits),))

    held = having(LIMITS)
    drops = of_nics(endpoints(held).nics, {NetworkName("default"): COUNTED})
    task = task._replace(reservation=held)
    shown = list(task_fields(task, 0, drops=drops))
    assert ("Egress", f"{LEASE.nic} 10.0.0.0/8:5432/tcp") in shown
    assert ("Rate", f"{LEASE.nic} sent=1M") in shown
    assert ("Dropped", f"{LEASE.nic} egress 7, sent_rate 8, spoofed 9") in shown
    document: Any = task_json(task, drops=drops)
    assert document["drops"] == {LEASE.nic: dict(drops[LEASE.nic])}
    [nic] = document["nics"]
    assert (nic["egress"], nic["rate"]) == (["10.0.0.0/8:5432/tcp"], ["sent=1M"])
    closed = having(Limits(egress=()))
    shown = list(task_fields(task._replace(reservation=closed), 0))
    assert ("Egress", f"{LEASE.nic} none") in shown
    assert "Rate" not in dict(shown)
    only = having(Limits(rate=Rate(sent=5000)))
    assert "Egress" not in dict(task_fields(task._replace(reservation=only), 0))
    router = having(Limits(routes=routes(["192.168.2.0/24"])))
    assert ("Routes", f"{LEASE.nic} 192.168.2.0/24") in list(task_fields(task._replace(reservation=router), 0))
    document = task_json(task._replace(reservation=only))
    assert "egress" not in document["nics"][0]


def test_inspect_reads_the_counts_of_a_task_with_limits_as_root(solo5ctl: Solo5ctl) -> None:
    assert "Dropped: service " in solo5ctl("inspect", "web").out
    assert "drops" in json.loads(solo5ctl("inspect", "--json", "web").out)[0]
    assert "Dropped:" not in solo5ctl("inspect", "web", root=False).out


def test_a_sample_has_the_drops_of_its_nics() -> None:
    nic = next(iter(FULL.nics))
    sample = FULL._replace(drops={nic: {"egress": 7}})
    shown: Any = usage_json("web", None, sample)["nics"]
    assert [each.get("drops") for each in shown if each["nic"] == nic] == [{"egress": 7}]
    assert sum("drops" in each for each in shown) == 1


def test_metrics_count_filtered_packets_by_nic_and_by_network() -> None:
    counted = replace(NETWORK, dropped=replace(COUNTED, rules={**COUNTED.rules, ("host", "solo5-default"): 3}))
    held = Reservation(task=WEB, leases=(LEASE,))
    down = replace(NETWORK, name=NetworkName("down"), up=False)
    found = {each.name: each.values for each in families([], {WEB: endpoints(held)}, {}, [counted, down])}
    by_nic = {labels["rule"]: value for labels, value in found["solo5_task_network_filtered_packets"]}
    assert by_nic == {
        "connections": 0, "fragments": 0, "egress": 7, "sent_rate": 8, "received_rate": 0,
        "spoofed": 9, "unsafe": 0, "broadcasts": 0,
    }  # fmt: skip
    by_network = {labels["rule"]: value for labels, value in found["solo5_network_filtered_packets"]}
    assert (by_network["host"], by_network["closed"]) == (3, 0)
    assert {labels["network"] for labels, _ in found["solo5_network_filtered_packets"]} == {"default"}


def test_metrics_count_filtered_packets_of_guests_in_namespaces_of_other_programs() -> None:
    """Guests of several namespaces may have the same address."""
    counted = [
        replace(NETWORK, namespace=path, dropped=Dropped(rules={**COUNTED.rules, ("egress", str(address)): count}))
        for path, count in (("/run/a", 1), ("/run/b", 2))
        for address in LEASE.addresses
    ]
    held = endpoints(Reservation(task=WEB, leases=(LEASE,)))
    tasks = {TaskName(name): held._replace(namespace=f"/run/{name}") for name in ("a", "b", "c")}
    found = {each.name: each.values for each in families([], tasks, {}, counted)}
    values = found["solo5_task_network_filtered_packets"]
    assert {labels["task"]: value for labels, value in values if labels["rule"] == "egress"} == {"a": 1, "b": 2}
    assert list(found["solo5_network_filtered_packets"]) == []
    assert not [labels for each in found.values() for labels, _ in each if labels.get("network") == "default"]
