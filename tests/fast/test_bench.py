"""The floor of the benchmark: how units and elements are handed to it, and how CPU time is divided."""

import asyncio
import os
import struct
import subprocess
import tomllib
from collections.abc import Callable, Iterator, Sequence
from ipaddress import IPv4Address, IPv4Interface

import pytest
from tests.bench import driver, nft_batch, processes
from tests.bench.floor import _property

from solo5_systemd.base.names import DeviceName, NetworkName, TaskName
from solo5_systemd.network.ipam import free_addresses
from solo5_systemd.network.model import Lease, MacAddress, PortRequest, Protocol, Reservation
from solo5_systemd.network.nft_elements import Element, task_elements
from solo5_systemd.network.raw_netlink import NLM_ACK, attributes
from solo5_systemd.settings.model import parse_settings
from solo5_systemd.task.properties import Property

ADD, DELETE = 10 << 8 | 12, 10 << 8 | 14
LEASE = Lease(
    nic=DeviceName("service"),
    network=NetworkName("default"),
    bridge="solo5-default",
    tap="floor-7",
    ipv4=IPv4Interface("10.200.0.9/16"),
    gateway4=IPv4Address("10.200.0.1"),
    mac=MacAddress("02:f1:00:00:00:07"),
    mtu=1500,
)
PORT = PortRequest(nic=LEASE.nic, host_port=40000, port=80, protocol=Protocol.TCP)
TAP = b"floor-7".ljust(16, b"\0")
ADDRESS = bytes([10, 200, 0, 9])


def elements() -> tuple[Element, ...]:
    return task_elements(Reservation(task=TaskName("floor-7"), leases=(LEASE,), ports=(PORT,)), ())


@pytest.mark.parametrize(
    "entry, words",
    [
        (Property("User", "s", "61184"), ["User", "s", "61184"]),
        (Property("RemoveIPC", "b", True), ["RemoveIPC", "b", 1]),
        (Property("LogExtraFields", "aay", [b"A=1", b""]), ["LogExtraFields", "aay", 2, 3, 65, 61, 49, 0]),
        (Property("RestrictAddressFamilies", "(bas)", (True, [])), ["RestrictAddressFamilies", "(bas)", 1, 0]),
        (Property("ExecStart", "a(sasb)", [("/t", ["t"], False)]), ["ExecStart", "a(sasb)", 1, "/t", 1, "t", 0]),
        (Property("BindPaths", "a(ssbt)", [("/a", "/b", False, 9)]), ["BindPaths", "a(ssbt)", 1, "/a", "/b", 0, 9]),
        (Property("IPAddressDeny", "a(iayu)", [(2, bytes(2), 0)]), ["IPAddressDeny", "a(iayu)", 1, 2, 2, 0, 0, 0]),
    ],
)  # fmt: skip
def test_a_property_is_handed_over_as_flat_words_with_the_lengths_of_arrays(
    entry: Property, words: list[object]
) -> None:
    assert list(_property(entry)) == words


def messages(batch: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield type, flags and body of each message."""
    while batch:
        length, kind, flags, _, _ = struct.unpack_from("=IHHII", batch)
        yield kind, flags, batch[16:length]
        batch = batch[length:]


def keys(batch: bytes) -> dict[tuple[int, str], bytes]:
    """Return the key of each element, by family and set."""
    found = {}
    for _, _, body in list(messages(batch))[1:-1]:
        of = attributes(body[4:])
        assert of[1] == b"solo5-floor\0"
        found[body[0], of[2].decode().rstrip("\0")] = attributes(attributes(attributes(of[3])[1])[1])[1]
    return found


@pytest.mark.parametrize("make, kind", [(nft_batch.add, ADD), (nft_batch.delete, DELETE)])
def test_the_last_change_of_a_batch_is_acknowledged(make: Callable[[str, Sequence[Element]], bytes], kind: int) -> None:
    sent = list(messages(make("solo5-floor", elements())))
    assert [each[0] for each in sent] == [0x10, *[kind] * len(elements()), 0x11]
    assert [bool(flags & NLM_ACK) for _, flags, _ in sent] == [False] * len(elements()) + [True, False]


def test_the_parts_of_a_concatenated_key_are_padded_to_four_bytes() -> None:
    mac = bytes.fromhex("02f10000000700 00")
    expected = {
        (7, "guests"): TAP + mac + ADDRESS,
        (7, "plain"): TAP + mac + ADDRESS,
        (7, "reflected"): TAP + TAP,
        (7, "fragments"): ADDRESS,
        (2, "leased"): ADDRESS + ADDRESS,
        (2, "refused"): ADDRESS,
        (2, "published"): bytes([6, 0, 0, 0]) + (40000).to_bytes(2) + bytes(2),
    }
    assert keys(nft_batch.add("solo5-floor", elements())) == expected
    assert keys(nft_batch.delete("solo5-floor", elements())) == expected


def test_an_element_of_a_map_has_its_value_only_when_it_is_added() -> None:
    def value(batch: bytes) -> bytes | None:
        [_, *changes, _] = messages(batch)
        element = attributes(attributes(attributes(changes[-1][2][4:])[3])[1])
        return attributes(element[2])[1] if 2 in element else None

    assert value(nft_batch.add("solo5-floor", elements())) == ADDRESS + (80).to_bytes(2) + bytes(2)
    assert value(nft_batch.delete("solo5-floor", elements())) is None


def test_cpu_time_of_a_part_is_taken_from_the_rest() -> None:
    before = {"PID 1": 10, processes.REST: 100}
    after = {"PID 1": 15, processes.REST: 190}
    assert processes.difference(after, before, also={"client": 30}) == {"PID 1": 5, "client": 30, processes.REST: 60}


def test_the_network_of_the_benchmark_has_room_for_as_many_tasks_as_a_network_can_have() -> None:
    [network] = parse_settings(tomllib.loads(driver.SETTINGS)).networks
    assert free_addresses(network, 0) == 10_000


def test_a_service_that_exits_while_it_is_watched_has_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    def answers() -> Iterator[dict[str, int]]:
        yield {"plugin": os.getpid(), "solo5-networkd": service.pid}
        service.kill()
        service.wait()
        yield {"plugin": os.getpid()}

    with subprocess.Popen(["sleep", "60"]) as service:
        found = answers()
        monkeypatch.setattr(processes, "ours", lambda _: next(found))
        assert set(asyncio.run(processes.watched(os.getpid(), 0))) == {"plugin"}
