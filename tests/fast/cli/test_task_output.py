"""Text and JSON output of a task."""

import json
from dataclasses import replace
from ipaddress import IPv6Address, IPv6Interface

import pytest
from tests.support.fakes.tasks import LEASE, PORTS, STARTED, ended, endpoints, running

from solo5_systemd.base.names import DeviceName, TaskName, UnitKind
from solo5_systemd.cli import task_output
from solo5_systemd.cli.task_output import status
from solo5_systemd.engine.task import Phase, Task
from solo5_systemd.network.endpoints import Endpoints
from solo5_systemd.network.model import PortRequest, Protocol, Reservation
from solo5_systemd.storage.model import FailedDisk
from solo5_systemd.unit.outcome import Ending, Outcome

MINUTE = 60_000_000
NOW = STARTED + 3 * MINUTE


@pytest.mark.parametrize(
    ("task", "asleep", "text"),
    [
        (running(phase=Phase.STARTING), 0, "Starting"),
        (running(), 0, "Up 3 minutes"),
        (running(phase=Phase.FROZEN), 0, "Up 3 minutes (frozen)"),
        (running(phase=Phase.HUNG), 0, "Hung"),
        (running(phase=Phase.STOPPING), 0, "Stopping"),
        (running(), STARTED + MINUTE, "Asleep 2 minutes"),
        (running(phase=Phase.FROZEN), STARTED + MINUTE, "Up 3 minutes (frozen)"),
        (ended(), 0, "Exited (0) 2 minutes ago"),
        (ended(), STARTED + MINUTE, "Dormant 2 minutes"),  # its last run has ended, whatever it ended with
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_status_of_a_task(task: Task, asleep: int, text: str) -> None:
    assert status(task, NOW, asleep) == text


@pytest.mark.parametrize("ending", Ending)
def test_every_ending_has_a_status_of_its_own(ending: Ending) -> None:
    outcome = Outcome(ending=ending, exit_code=3, sentence="…")
    others = {status(ended(outcome=replace(outcome, ending=other)), NOW) for other in Ending if other is not ending}
    text = status(ended(outcome=outcome), NOW)
    assert text.endswith(" 2 minutes ago")
    assert text not in others


def test_unknown_times_are_left_out() -> None:
    scope = running(kind=UnitKind.SCOPE)
    timeless = scope._replace(state=scope.state._replace(started=0))
    assert status(timeless, NOW) == "Up"
    gone = ended()
    assert status(gone._replace(state=gone.state._replace(ended=0), outcome=None), NOW) == "Ended"


def test_ports_and_addresses_have_podmans_format() -> None:
    task = running(networked=True)
    assert task.reservation is not None
    shown = endpoints(task.reservation)
    assert task_output.ports(shown) == "0.0.0.0:8080->80/tcp, 127.0.0.1:53->53/udp"
    assert task_output.addresses(shown) == "10.89.0.2"
    assert task_output.ports(None) == task_output.addresses(None) == ""


def test_json_of_a_running_task() -> None:
    assert task_output.task_json(running(networked=True)) == {
        "name": "web",
        "phase": "running",
        "kind": "service",
        "unit": "solo5-task-web.service",
        "invocation_id": "0" * 31 + "1",
        "image": "/srv/web.hvt",
        "image_sha256": "5" * 64,
        "tender": "hvt",
        "memory": 64 << 20,
        "pid": 4711,
        "started": "2023-11-14T22:13:20.000000Z",
        "control_group": "/solo5.slice/solo5-task-web.service",
        "nics": [
            {
                "nic": "service",
                "network": "default",
                "ipv4": "10.89.0.2/24",
                "gateway4": "10.89.0.1",
                "mac": LEASE.mac,
                "mtu": 1500,
                "tap": LEASE.tap,
                "bridge": LEASE.bridge,
            }
        ],
        "ports": [
            {"nic": "service", "host_ip": "0.0.0.0", "host_port": 8080, "port": 80, "protocol": "tcp"},
            {"nic": "service", "host_ip": "127.0.0.1", "host_port": 53, "port": 53, "protocol": "udp"},
        ],
        "log_fields": {},
    }
    assert len(PORTS) == 2


def test_json_has_no_keys_for_unknown_values() -> None:
    task = running()
    bare = task._replace(state=task.state._replace(main_pid=0, started=0, control_group="", log_fields={"TEAM": "web"}))
    assert task_output.task_json(bare) == {
        "name": "web",
        "phase": "running",
        "kind": "service",
        "unit": "solo5-task-web.service",
        "invocation_id": "0" * 31 + "1",
        "nics": [],
        "ports": [],
        "log_fields": {"TEAM": "web"},
    }


def test_json_of_an_outcome() -> None:
    killed = Outcome(ending=Ending.KILLED, signal=9, sentence="killed")
    assert task_output.outcome_json(killed) == {
        "ending": "killed",
        "sentence": "killed",
        "clean": False,
        "retry": True,
        "exit_status": 137,
        "signal": 9,
    }
    exited = task_output.task_json(ended())["outcome"]
    assert exited == {
        "ending": "exited",
        "sentence": "the guest exited with 0",
        "clean": True,
        "retry": True,
        "exit_status": 0,
        "exit_code": 0,
    }


def test_json_of_an_outcome_has_the_reason_why_a_retry_fails_and_the_disks_that_have_failed() -> None:
    outcome = Outcome(ending=Ending.OUT_OF_MEMORY, signal=9, sentence="…", futile="too small", memory_peak=64 << 20)
    full = FailedDisk(task="web", disk="data", path="/srv/data.img", free=0)
    lost = FailedDisk(task="web", disk="log", path="/dev/sda")
    shown = task_output.outcome_json(replace(outcome, failed_disks=(full, lost)))
    assert (shown["retry"], shown["retry_reason"], shown["memory_peak"]) == (False, "too small", 64 << 20)
    assert shown["full_disks"] == [{"disk": "data", "path": "/srv/data.img", "free": 0}]
    assert shown["lost_disks"] == [{"disk": "log", "path": "/dev/sda"}]


def test_fields_of_a_failure_show_whether_a_retry_can_help() -> None:
    outcome = Outcome(ending=Ending.OUT_OF_MEMORY, signal=9, sentence="…", futile="too small", memory_peak=64 << 20)
    shown = dict(task_output.task_fields(ended(outcome=outcome), NOW))
    assert (shown["Retry"], shown["Memory peak"]) == ("cannot help: too small", "64M")
    assert dict(task_output.task_fields(ended(outcome=replace(outcome, futile="")), NOW))["Retry"] == "can help"
    assert "Retry" not in dict(task_output.task_fields(ended(), NOW))


def test_fields_of_a_running_task_name_unit_nic_and_ports() -> None:
    shown = dict(task_output.task_fields(running(networked=True), NOW))
    assert shown["Status"] == "Up 3 minutes"
    assert shown["Memory"] == "64M"
    assert shown["Main PID"] == "4711"
    assert shown["NIC"].startswith("service on default: 10.89.0.2/24, gateway 10.89.0.1, MAC 02:00:5e:10:00:01")
    assert shown["Port"] == "127.0.0.1:53->53/udp (service)"
    assert "Outcome" not in shown
    assert "Journal" not in shown
    task = running()
    of_guests = task._replace(state=task.state._replace(log_fields={"SOLO5_LOG_NAMESPACE": "guests"}))
    assert dict(task_output.task_fields(of_guests, NOW))["Journal"] == "namespace guests"
    over = dict(task_output.task_fields(ended(), NOW))
    assert (over["Outcome"], "Main PID" in over) == ("the guest exited with 0", False)


def test_name_servers_and_host_name_are_shown_where_an_argument_has_them() -> None:
    task = running()
    fields = {"SOLO5_DNS": "9.9.9.9,192.0.2.53", "SOLO5_DNS_SEARCH": "example.org", "SOLO5_HOSTNAME": "shop"}
    fields["SOLO5_HOSTS"] = "db=192.0.2.7,up=10.89.0.1"
    used = task._replace(state=task.state._replace(log_fields={**task.state.log_fields, **fields}))
    shown = dict(task_output.task_fields(used, NOW))
    assert (shown["Hostname"], shown["Search domains"]) == ("shop", "example.org")
    assert shown["Name servers"] == "9.9.9.9, 192.0.2.53"
    document = task_output.task_json(used)
    assert (document["hostname"], document["dns_search"]) == ("shop", ["example.org"])
    assert document["dns"] == ["9.9.9.9", "192.0.2.53"]
    assert (shown["Hosts"], document["hosts"]) == ("db=192.0.2.7, up=10.89.0.1", ["db=192.0.2.7", "up=10.89.0.1"])
    assert not {"hostname", "dns", "dns_search", "hosts"} & task_output.task_json(task).keys()
    assert not {"Hostname", "Name servers", "Search domains"} & dict(task_output.task_fields(task, NOW)).keys()


def test_the_network_namespace_is_shown_of_a_task_that_shares_one() -> None:
    task = running()
    fields = {**task.state.log_fields, "SOLO5_NETWORK_NAMESPACE": "/run/netns/shop"}
    shared = task._replace(state=task.state._replace(log_fields=fields))
    assert dict(task_output.task_fields(shared, NOW))["Network"] == "namespace /run/netns/shop"
    assert task_output.task_json(shared)["network_namespace"] == "/run/netns/shop"
    assert "Network" not in dict(task_output.task_fields(task, NOW))
    assert "network_namespace" not in task_output.task_json(task)


def test_both_addresses_of_a_lease_are_shown_and_ipv6_addresses_of_the_host_in_brackets() -> None:
    gateway, host_ip = IPv6Address("fd00:1::1"), IPv6Address("2001:db8::1")
    lease = replace(LEASE, ipv6=IPv6Interface("fd00:1::7/64"), gateway6=gateway)
    held = Reservation(task=TaskName("web"), leases=(lease,), ports=(replace(PORTS[0], host_ip=host_ip),))
    assert ", gateway 10.89.0.1, fd00:1::7/64, gateway fd00:1::1, MAC " in task_output.lease_text(lease)
    [nic] = json.loads(json.dumps(task_output.reservation_json(held)))["nics"]
    assert (nic["ipv6"], nic["gateway6"]) == ("fd00:1::7/64", "fd00:1::1")
    assert [line for line, _ in task_output.port_lines(held.ports)] == ["[2001:db8::1]:8080->80/tcp"]


def test_ports_that_follow_each_other_are_one_range() -> None:
    def published(host: int, port: int, nic: str = "service", protocol: Protocol = Protocol.TCP) -> PortRequest:
        return PortRequest(nic=DeviceName(nic), host_port=host, port=port, protocol=protocol)

    requests = [
        *(published(8000 + number, 80 + number) for number in range(11)),
        published(8011, 92),
        published(8012, 93, "other"),
        *(published(53 + number, 53 + number, protocol=Protocol.UDP) for number in range(2)),
        replace(published(55, 55, protocol=Protocol.UDP), host_ip=IPv6Address("2001:db8::1")),
    ]
    shown = [
        "0.0.0.0:8000-8010->80-90/tcp",
        "0.0.0.0:8011->92/tcp",
        "0.0.0.0:8012->93/tcp",
        "0.0.0.0:53-54->53-54/udp",
        "[2001:db8::1]:55->55/udp",
    ]
    assert [line for line, _ in task_output.port_lines(requests)] == shown
    assert [each.nic for _, each in task_output.port_lines(requests)] == [
        "service",
        "service",
        "other",
        *["service"] * 2,
    ]
    both = [published(number, number, protocol=kind) for number in (5, 6, 7) for kind in Protocol]
    assert [line for line, _ in task_output.port_lines(both)] == ["0.0.0.0:5-7->5-7/tcp", "0.0.0.0:5-7->5-7/udp"]
    ports = tuple((str(each.host_ip or ""), each.host_port, each.port, each.protocol.value) for each in requests)
    assert task_output.ports(Endpoints(ports=ports)) == ", ".join(
        ("0.0.0.0:8000-8010->80-90/tcp", "0.0.0.0:8011-8012->92-93/tcp", *shown[3:])
    )


def test_a_lease_without_an_address_is_a_dash_and_null() -> None:
    held = Reservation(task=TaskName("web"), leases=(replace(LEASE, ipv4=None, gateway4=None),))
    assert task_output.addresses(endpoints(held)) == "-"
    assert task_output.lease_text(held.leases[0]).startswith("on default: no leased address, gateway -, MAC ")
    [nic] = json.loads(json.dumps(task_output.reservation_json(held)))["nics"]
    assert (nic["ipv4"], nic["gateway4"]) == (None, None)
