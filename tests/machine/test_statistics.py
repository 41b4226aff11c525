"""What tasks use, beside a witness that counts by itself."""

import json
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.machine.conftest import Machine, Runner, ok, says, unit_property

COLLECTOR = Path("/var/lib/prometheus/node-exporter")
"""Bytes of a datagram's frame beside the datagram: Ethernet, IPv4, UDP."""


def stats(name: str) -> dict[str, Any]:
    [row] = json.loads(ok("solo5ctl", "stats", "--no-stream", "--json", name))
    assert isinstance(row, dict)
    return row


def counted(name: str) -> dict[str, int]:
    """The counters of one task's NICs, such as `service receive_bytes`."""
    pattern = re.compile(rf'solo5_task_network_(\w+)_total{{task="{name}",nic="(\w+)"}} (\d+)')
    return {f"{nic} {counter}": int(value) for counter, nic, value in pattern.findall(ok("solo5ctl", "metrics"))}


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
