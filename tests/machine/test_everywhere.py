"""The whole story of a task, on every kernel that the tests know: the host's and, for hvt, the `vm` backend's own."""

import json

import pytest
from tests.machine.conftest import Outside, Runner, eventually, exposure, inspect, ok, unit_property


@pytest.mark.parametrize("target", [pytest.param("hvt", marks=pytest.mark.everywhere), "spt"])
def test_a_task_serves_is_confined_stops_and_is_remembered(run: Runner, outside: Outside, target: str) -> None:
    name = run(
        f"net.{target}",
        "--ipv4={net.service.ipv4_cidr}",
        "--ipv4-gateway={net.service.gateway4}",
        options=("-p", "8080:80"),
    )
    eventually(lambda: outside.tcp(outside.here, 8080), "the published port answers")
    task = inspect(name)
    unit = task["unit"]
    [nic] = task["nics"]
    address = nic["ipv4"].partition("/")[0]
    assert " 0% packet loss" in ok("ping", "-c5", "-i0.2", "-W5", address)
    assert " 100% packet loss" in outside.sh("ping", "-c2", "-i0.2", "-W1", address).stdout, "only ports are published"

    assert exposure(unit) <= 2.0

    ok("solo5ctl", "stop", name)
    ended = inspect(name)
    assert (ended["phase"], ended["outcome"]["ending"]) == ("ended", "stopped")
    assert unit_property(unit, "ActiveState") == "inactive", "not failed"
    eventually(lambda: not inspect(name)["nics"], "its leases are released")
    assert outside.tcp(outside.here, 8080) == ""
    assert nic["tap"] not in {link["ifname"] for link in json.loads(ok("ip", "-json", "link"))}
