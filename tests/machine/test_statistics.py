"""What tasks use, beside a witness that counts by itself."""

import json
import re
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.machine.conftest import Machine, Runner, inspect, ok, says, unit_property

COLLECTOR = Path("/var/lib/prometheus/node-exporter")
HEADERS = 14 + 20 + 8
"""Bytes of a datagram's frame beside the datagram: Ethernet, IPv4, UDP."""


def stats(name: str) -> dict[str, Any]:
    [row] = json.loads(ok("solo5ctl", "stats", "--no-stream", "--json", name))
    assert isinstance(row, dict)
    return row


def counted(name: str) -> dict[str, int]:
    """The counters of one task's NICs, such as `service receive_bytes`."""
    pattern = re.compile(rf'solo5_task_network_(\w+)_total{{task="{name}",nic="(\w+)"}} (\d+)')
    return {f"{nic} {counter}": int(value) for counter, nic, value in pattern.findall(ok("solo5ctl", "metrics"))}


def echoed(address: str, count: int, size: int) -> None:
    """Have so many datagrams of so many bytes come back, one after the other."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as channel:
        channel.settimeout(10)
        channel.connect((address, 7))
        for _ in range(count):
            channel.send(bytes(size))
            assert len(channel.recv(2048)) == size


def test_every_frame_of_a_nic_is_counted_and_none_of_another(run: Runner) -> None:
    addresses = ("--ipv4={net.service.ipv4_cidr}", "--management-ipv4={net.management.ipv4_cidr}")
    nets = ("--net", "service=default", "--net", "management=default")
    name = run("net2.spt", *addresses, options=nets)
    says(name, "serving")
    address = {nic["nic"]: nic["ipv4"].partition("/")[0] for nic in inspect(name)["nics"]}["management"]
    echoed(address, 1, 1)  # and ARP is done with
    before = counted(name)
    echoed(address, 40, 100)
    grown = {counter: value - before[counter] for counter, value in counted(name).items()}
    assert {counter: growth for counter, growth in grown.items() if growth} == {
        "management receive_bytes": 40 * (100 + HEADERS),
        "management receive_packets": 40,
        "management transmit_bytes": 40 * (100 + HEADERS),
        "management transmit_packets": 40,
    }


def test_metrics_are_the_same_as_statistics(run: Runner) -> None:
    name = run("net.spt", "--ipv4={net.service.ipv4_cidr}", options=("--log-field", "NOMAD_JOB_NAME=web"))
    says(name, "serving")
    [nic] = stats(name)["nics"]
    assert nic["sent"]["packets"] == counted(name)["service transmit_packets"] > 0
    lines = ok("solo5ctl", "metrics").splitlines()
    assert "# TYPE solo5_task_network_transmit_packets counter" in lines
    assert [line for line in lines if line.startswith("solo5_task_info{") and 'nomad_job="web"' in line]
    assert 'solo5_network_leases{network="default"} 1' in lines
    assert lines[-1] == "# EOF"


@pytest.fixture
def collector(machine: Machine) -> Iterator[Path]:
    COLLECTOR.mkdir(parents=True)
    yield COLLECTOR / "solo5.prom"
    for file in COLLECTOR.iterdir():
        file.unlink()
    COLLECTOR.rmdir()
    COLLECTOR.parent.rmdir()


def test_the_packaged_unit_writes_for_node_exporter(collector: Path) -> None:
    ok("systemctl", "start", "solo5-metrics.service")
    assert 'solo5_tasks{phase="running"} 0\n' in collector.read_text()
    assert stat.S_IMODE(collector.stat().st_mode) == 0o644
    assert [file.name for file in COLLECTOR.iterdir()] == ["solo5.prom"]
    assert unit_property("solo5-metrics.timer", "UnitFileState") == "disabled", "until an operator wants it"
