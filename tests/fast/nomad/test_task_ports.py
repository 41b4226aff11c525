"""The ports of a job: which a task publishes, at which NIC, and the address that its services register."""

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Interface
from typing import Any

import pytest
from tests.fast.nomad.values import TASK_ID, in_group, options_of, port, task_config
from tests.support.fakes.tasks import LEASE

from solo5_systemd.base.decode import Fields
from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.base.names import DeviceName
from solo5_systemd.network.model import PortRequest, Protocol, Reservation
from solo5_systemd.nomad import event_messages
from solo5_systemd.nomad.ports import endpoint, guest_address, network_override, publish, taken_by_sibling
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.nomad.task_options import GuestPort, OnLoss, ReadinessProbe
from solo5_systemd.nomad.workload import name_of
from solo5_systemd.settings.network import NAMESPACE_NETWORK, NO_NETWORK
from solo5_systemd.settings.records import document, record
from solo5_systemd.task.workload import Publish, Workload

ADDRESS = IPv4Address("192.0.2.1")
HTTP = port("http", 25001, 80, "192.0.2.1")
DNS = port("dns", 53)
WEB = Workload(name=name_of(TASK_ID), image="/srv/app")
Row = tuple[str | None, str, int, int, str]


def rows_of(task: wire.TaskConfig) -> list[Row]:
    rows = publish(task, options_of(task))
    return [(row.nic, str(row.host_ip or ""), row.host_port, row.port, row.protocol.value) for row in rows]


def published(*ports: wire.PortMapping, **config: Any) -> list[Row]:
    return rows_of(task_config(*ports, **config))


def test_all_ports_of_the_group_are_published_where_the_job_does_not_say() -> None:
    both: list[Row] = [
        (None, "192.0.2.1", 25001, 80, "tcp"),
        (None, "192.0.2.1", 25001, 80, "udp"),
        (None, "", 53, 53, "tcp"),
        (None, "", 53, 53, "udp"),
    ]
    assert published(HTTP, DNS) == both
    assert published(HTTP, DNS, nic={"service": {}}) == both


def test_only_the_ports_that_are_named_are_published() -> None:
    assert published(HTTP, DNS, ports=[]) == []
    assert published(HTTP, DNS, ports=["dns/udp"]) == [(None, "", 53, 53, "udp")]
    assert [row[3] for row in published(HTTP, DNS, ports=["http/tcp", "dns/tcp"])] == [80, 53]


def test_a_nics_ports_go_to_that_nic() -> None:
    nics: dict[str, object] = {"admin": {"ports": ["dns/udp"]}, "service": {}}
    assert published(HTTP, DNS, nic=nics) == [("admin", "", 53, 53, "udp")]
    assert published(HTTP, DNS, nic=nics, ports=["http/tcp"]) == [
        ("admin", "", 53, 53, "udp"),
        (None, "192.0.2.1", 25001, 80, "tcp"),
    ]


@pytest.mark.parametrize(("to", "port_"), [(0, 8080), (-1, 8080), (80, 80)])
def test_a_port_without_another_number_inside_has_the_hosts(to: int, port_: int) -> None:
    assert published(port("http", 8080, to), ports=["http/tcp"]) == [(None, "", 8080, port_, "tcp")]


@pytest.mark.parametrize("wildcard", ["", "0.0.0.0"])
def test_the_wildcard_is_every_address(wildcard: str) -> None:
    assert published(port("http", 80, 80, wildcard), ports=["http/tcp"]) == [(None, "", 80, 80, "tcp")]


def test_a_port_of_a_host_network_with_an_ipv6_address_is_published_there() -> None:
    task = task_config(port("http", 80, 80, "2001:db8::1"))
    assert {str(row.host_ip) for row in publish(task, options_of(task))} == {"2001:db8::1"}


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (
            task_config(HTTP, DNS, ports=["htp"]),
            "config.ports names 'htp': expected one of the group's ports (http, dns).",
        ),
        (task_config(ports=["http"]), "expected one of the group's ports (none). Add it to the group: network { port"),
        (task_config(HTTP, nic={"service": {"ports": ["x"]}}), "names 'x': expected one of the group's ports (http)"),
        (task_config(port("http", 80, 80, "2001:db8::x")), "address '2001:db8::x' is not an IPv6 address"),
        (task_config(port("http", 80, 80, "nonsense")), "address 'nonsense' is not an IPv4 address"),
    ],
)
def test_a_port_that_cannot_be_published_is_refused(task: wire.TaskConfig, words: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        list(publish(task, options_of(task)))
    assert words in str(caught.value)


def with_own(task: wire.TaskConfig) -> wire.TaskConfig:
    """The task with a `network` block among its resources, as Nomad sends it: without `to`."""
    network = task.resources.allocated_resources.networks.add(ip="192.0.2.1")
    network.reserved_ports.add(label="admin", value=8080)
    network.dynamic_ports.add(label="stats", value=25002)
    return task


def test_ports_of_the_tasks_own_resources_are_published_with_the_groups() -> None:
    task = with_own(task_config(HTTP))
    rows = [(row.host_ip, row.host_port, row.port) for row in publish(task, options_of(task))]
    own = [(ADDRESS, 8080, 8080), (ADDRESS, 25002, 25002)]
    assert rows[::2] == rows[1::2] == [(ADDRESS, 25001, 80), *own]
    listed = with_own(task_config(HTTP, ports=["stats/tcp"]))
    assert [row.host_port for row in publish(listed, options_of(listed))] == [25002]
    override = network_override(reservation("service"), listed, options_of(listed))
    assert override is not None
    assert dict(override.port_map) == {"stats": 25002}


def test_only_ports_that_the_job_does_not_list_are_implied() -> None:
    for config, implied in (
        ({}, True),
        ({"ports": ["http"]}, False),
        ({"nic": {"service": {"ports": ["http"]}}}, False),
    ):
        task = task_config(HTTP, **config)
        assert {row.implied for row in publish(task, options_of(task))} == {implied}


# --- the address that services register ----------------------------------------------------------------------


def reservation(*nics: str, ports: tuple[str, ...] = ()) -> Reservation:
    """Leases of these NICs from 10.89.0.2 on, and a port for each NIC of `ports`."""
    leases = tuple(
        replace(LEASE, nic=DeviceName(nic), ipv4=IPv4Interface(f"10.89.0.{number}/24"))
        for number, nic in enumerate(nics, 2)
    )
    requests = tuple(
        PortRequest(nic=DeviceName(nic), host_port=number, port=80, protocol=Protocol.TCP)
        for number, nic in enumerate(ports, 8000)
    )
    return Reservation(task=name_of(TASK_ID), leases=leases, ports=requests)


@pytest.mark.parametrize(
    ("nics", "ports", "address"),
    [
        (("left",), (), "10.89.0.2"),
        (("left", "right"), (), "10.89.0.2"),
        (("left", "service"), (), "10.89.0.3"),
        (("left", "service"), ("left",), "10.89.0.2"),
        (("service", "right"), ("right", "right"), "10.89.0.3"),
    ],
)
def test_services_register_the_nic_that_the_ports_lead_to(
    nics: tuple[str, ...], ports: tuple[str, ...], address: str
) -> None:
    task = task_config(HTTP, DNS, ports=["http"])
    held = reservation(*nics, ports=ports)
    override = network_override(held, task, options_of(task))
    assert override is not None
    assert (override.addr, dict(override.port_map)) == (address, {"http": 80})
    assert guest_address(held) == wire.NetworkOverride(addr=address)
    assert list(event_messages.limits(WEB, held)) == []


def test_no_address_is_registered_where_ports_lead_to_several_nics() -> None:
    task = task_config(HTTP)
    held = reservation("service", "lab", ports=("lab", "service"))
    assert network_override(held, task, options_of(task)) is None
    assert guest_address(held) is None
    [event] = event_messages.limits(WEB, held)
    assert "NICs service, lab have published ports," in event.message


def leased(**changes: object) -> Reservation:
    """One lease with these changes."""
    held = reservation("service")
    return replace(held, leases=(replace(held.leases[0], **changes),))  # type: ignore[arg-type]


def beside_none() -> Reservation:
    """A guest in a namespace whose first NIC is on `none`."""
    held = reservation("admin", "service")
    first, second = held.leases
    none = replace(first, network=NO_NETWORK, ipv4=None, gateway4=None)
    return replace(held, leases=(none, replace(second, network=NAMESPACE_NETWORK)))


@pytest.mark.parametrize(
    "held",
    [None, reservation(), leased(ipv4=None, gateway4=None), leased(network=NAMESPACE_NETWORK), beside_none()],
    ids=["no record", "no NIC", "no leased address", "in a namespace", "in a namespace, beside none"],
)
def test_a_guest_without_an_address_of_its_own_registers_none(held: Reservation | None) -> None:
    task = task_config(HTTP, ports=[])
    assert network_override(held, task, options_of(task)) is None
    assert guest_address(held) is None


# --- other tasks of the group --------------------------------------------------------------------------------


def test_a_port_of_another_task_of_the_allocation_is_named_by_its_label() -> None:
    task = task_config(HTTP, DNS)
    wanted = tuple(publish(task, options_of(task)))
    held = [each.to(DeviceName("service")) for each in wanted if each.host_port == 53]
    error = taken_by_sibling(task, wanted, held, "resolver")
    assert str(error) == (
        "port dns is published to task resolver of the same allocation: expected each port of a group at one task. "
        'List what each task has: config { ports = ["dns"] } in one, config { ports = [] } in the other.'
    )
    assert taken_by_sibling(task, wanted[:2], held, "resolver") is None
    elsewhere = [Publish(host_port=53, port=53, host_ip=ADDRESS).to(DeviceName("service"))]
    assert taken_by_sibling(task, wanted, elsewhere, "resolver") is None


def test_in_a_namespace_the_groups_ports_are_those_behind_the_hosts() -> None:
    assert rows_of(in_group(HTTP, ports=["http/tcp"])) == [(None, "", 80, 80, "tcp")]
    assert rows_of(in_group(port("same", 25002), ports=["same/udp"])) == [(None, "", 25002, 25002, "udp")]
    six = port("six", 25003, 80, "2001:db8::1")
    assert rows_of(in_group(six, ports=["six/tcp"])) == [(None, "", 80, 80, "tcp")]


def test_in_a_namespace_a_number_is_a_port_that_a_sidecar_proxy_finds() -> None:
    assert rows_of(in_group(HTTP, ports=["8080/tcp"])) == [(None, "", 8080, 8080, "tcp")]
    rows = [(None, "", 8000 + number, 8000 + number, kind) for kind in ("tcp", "udp") for number in range(3)]
    assert rows_of(in_group(HTTP, ports=["8000-8002"])) == rows
    assert rows_of(in_group(port("8000-8002", 25002, 80), ports=["8000-8002/tcp"])) == [(None, "", 80, 80, "tcp")]
    for wrong, words in (("9-8", "config.ports: range 9-8 is reversed"), ("1-257", "has 257 ports"), ("1-", "'1-'")):
        with pytest.raises(InvalidRequestError, match=words):
            rows_of(in_group(HTTP, ports=[wrong]))
    with pytest.raises(InvalidRequestError, match="names '8000-8002'.*Nomad assigns single ports"):
        rows_of(task_config(HTTP, ports=["8000-8002/tcp"]))
    with pytest.raises(InvalidRequestError, match="port 70000 does not exist"):
        rows_of(in_group(HTTP, ports=["70000/tcp"]))
    with pytest.raises(InvalidRequestError, match="config.ports names '8080'"):
        rows_of(task_config(HTTP, ports=["8080/tcp"]))


def test_in_a_namespace_labels_at_several_addresses_of_the_host_lead_to_one_port_of_the_guest() -> None:
    labels = (port("web", 25000, 80), port("alias", 8080, 80), port("other", 25001, 81))
    rows = [(None, "", number, number, kind) for number in (80, 81) for kind in ("tcp", "udp")]
    assert sorted(rows_of(in_group(*labels)), key=str) == sorted(rows, key=str)
    assert rows_of(in_group(*labels, ports=["web/tcp", "alias", "80"])) == [rows[0], rows[1]]


def test_ports_of_nomads_proxies_are_not_the_guests_unless_it_lists_them() -> None:
    proxy = port("connect-proxy-web", 25004, -1)
    assert {row[3] for row in rows_of(in_group(HTTP, proxy))} == {80}
    assert {row[3] for row in rows_of(in_group(HTTP, proxy, ports=["connect-proxy-web"]))} == {25004}


def test_a_port_of_a_sibling_in_the_namespace_is_named_by_its_label() -> None:
    task = in_group(HTTP, ports=["http/tcp"])
    held = [PortRequest(nic=DeviceName("service"), host_port=80, port=80, protocol=Protocol.TCP)]
    error = taken_by_sibling(task, tuple(publish(task, options_of(task))), held, "first")
    assert error is not None
    assert "port http is published to task first" in str(error)


def test_a_guest_in_a_namespace_is_probed_there() -> None:
    task = in_group(HTTP, ready={"tcp": "http"})
    rule = options_of(task).ready
    assert rule is not None
    assert isinstance(rule.condition, GuestPort)
    lease = replace(LEASE, network=NAMESPACE_NETWORK)
    found = endpoint(rule.condition, task, options_of(task), Reservation(task=name_of(TASK_ID), leases=(lease,)))
    assert found.namespace == "/var/run/netns/group"
    probe = ReadinessProbe(**vars(found), interval=1.0, on_loss=OnLoss.EVENT)
    assert record(ReadinessProbe, Fields(document(probe))) == probe
