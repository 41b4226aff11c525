"""A job's `ready` block: parsed, checked, and stored in the handle."""

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Interface
from typing import Any

import pytest
from tests.fast.nomad.values import packed, port, task_config
from tests.support.fakes.tasks import LEASE

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.base.names import DeviceName, TaskName
from solo5_systemd.declared.update_request import PATTERN_MAX, ReadyLine
from solo5_systemd.network.model import Endpoint, Protocol, Reservation
from solo5_systemd.nomad import ports
from solo5_systemd.nomad.option_values import Options
from solo5_systemd.nomad.task_options import GuestPort, OnLoss, Rule, parse_rule, task_options

HTTP = GuestPort(protocol=Protocol.TCP, name="http")


def read(**keys: object) -> Rule:
    return parse_rule(Options(keys, "config.ready"))


@pytest.mark.parametrize(
    "keys, expected",
    [
        ({"console": "^up"}, Rule(console=ReadyLine(pattern="^up"))),
        ({"tcp": "http"}, Rule(tcp=HTTP)),
        ({"udp": "53", "interval": "1m"}, Rule(udp=GuestPort(protocol=Protocol.UDP, name="53"), interval=60.0)),
        (
            {"tcp": "http", "deadline": "5s", "interval": "250ms", "on_loss": "restart"},
            Rule(tcp=HTTP, deadline=5.0, interval=0.25, on_loss=OnLoss.RESTART),
        ),
    ],
)
def test_a_rule_has_the_keys_of_the_job(keys: dict[str, str], expected: Rule) -> None:
    assert read(**keys) == expected


@pytest.mark.parametrize(
    "keys, words",
    [
        ({}, "config.ready names no rule: expected exactly one of console"),
        ({"console": "a", "udp": "7"}, "config.ready names console and udp: expected exactly one of"),
        ({"tcp": "0"}, "config.ready.tcp: port 0 does not exist"),
        ({"tcp": "65536"}, "config.ready.tcp: port 65536 does not exist"),
        ({"udp": ""}, "config.ready.udp is '': expected a label"),
        ({"console": ""}, "config.ready.console is ''"),
        ({"console": "x" * (PATTERN_MAX + 1)}, "config.ready.console is 'xxx"),
        ({"tcp": "http", "deadline": "11m"}, "config.ready.deadline is '11m': expected from 1s to 600s"),
        ({"tcp": "http", "interval": "1ms"}, "config.ready.interval is '1ms': expected from 0.1s to 3600s"),
        ({"tcp": "http", "on_loss": "panic"}, "config.ready.on_loss is 'panic': expected one of"),
        ({"console": "a", "on_loss": "restart"}, "config.ready.on_loss is 'restart': expected none beside console"),
        ({"http": "80"}, "config.ready.http is not a known key"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused_in_one_sentence(keys: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read(**keys)
    assert str(caught.value).startswith(words)


# --- the endpoint --------------------------------------------------------------------------------------------


def endpoint(requested: GuestPort, nics: tuple[str, ...] = ("service",), **config: Any) -> Endpoint:
    job = task_config(port("http", 25001, 80), port("echo", 7), **config)
    options = task_options(job.msgpack_driver_config)
    leases = [LEASE, replace(LEASE, nic=DeviceName("lab"), ipv4=IPv4Interface("10.89.0.3/24"))]
    held = tuple(lease for lease in leases if lease.nic in nics)
    return ports.endpoint(requested, job, options, Reservation(task=TaskName("web"), leases=held))


@pytest.mark.parametrize(
    "name, number", [("http", 80), ("echo", 7), ("8080", 8080)], ids=["mapped", "same number", "the guest's own"]
)
def test_a_label_is_the_guests_port_at_the_guests_address(name: str, number: int) -> None:
    requested = GuestPort(protocol=Protocol.TCP, name=name)
    assert endpoint(requested) == Endpoint(protocol=Protocol.TCP, address=IPv4Address("10.89.0.2"), port=number)


def test_a_label_is_probed_at_its_nic_published_or_not() -> None:
    config = {"nic": {"service": {}, "lab": {"ports": ["http"]}}}
    assert endpoint(HTTP, ("service", "lab"), **config).address == IPv4Address("10.89.0.3")
    assert endpoint(HTTP, ports=[]).port == 80


@pytest.mark.parametrize("name", ["dns", "²"], ids=["a word", "a digit that is no number"])
def test_a_label_that_the_group_does_not_have_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"config.ready.tcp names '{name}': expected one of .*http, echo"):
        endpoint(GuestPort(protocol=Protocol.TCP, name=name))


def test_a_nic_without_a_leased_address_cannot_be_probed() -> None:
    held = Reservation(task=TaskName("web"), leases=(replace(LEASE, ipv4=None, gateway4=None),))
    job = task_config(port("http", 25001, 80))
    with pytest.raises(InvalidRequestError, match="NIC service has no leased address in network default: expected a"):
        ports.endpoint(HTTP, job, task_options(job.msgpack_driver_config), held)


def test_a_guest_without_an_address_cannot_be_probed() -> None:
    with pytest.raises(InvalidRequestError, match="config.ready.tcp is 'http', and the image has no NIC"):
        endpoint(HTTP, ())


# --- afterwards ----------------------------------------------------------------------------------------------


def test_the_option_is_the_rule() -> None:
    assert task_options(packed(unikernel="a", ready={"tcp": "http", "console": None})).ready == Rule(tcp=HTTP)
    assert task_options(packed(unikernel="a", ready=None)).ready is None
