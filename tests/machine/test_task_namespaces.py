"""Tasks of a network with `task_namespace`: a start, restarts by systemd, kills and removals, with real units."""

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.machine.conftest import GUESTS, Machine, Runner, eventually, ok, sh, unit_property
from tests.machine.test_joined import settings
from tests.machine.test_network import IPV4, address, web

APART = "[network.default]\ntask_namespace = true\n"
NAMESPACES = Path("/run/netns")


@pytest.fixture
def apart(machine: Machine) -> Iterator[None]:
    with settings(APART):
        yield
    assert not [*NAMESPACES.glob("solo5-*")], "no namespace is left"


def serves(name: str) -> bool:
    return sh("ping", "-c1", "-W1", address(name)).returncode == 0


@pytest.mark.parametrize("target", ["hvt", "spt"])
def test_a_tender_has_the_namespace_of_its_task(apart: None, run: Runner, target: str) -> None:
    one = web(run, name="one", target=target)
    pid = unit_property(f"solo5-task-{one}.service", "MainPID")
    assert Path(f"/proc/{pid}/ns/net").readlink() != Path("/proc/1/ns/net").readlink()
    links = ok("ip", "netns", "exec", f"solo5-{one}", "ip", "-o", "link").splitlines()
    assert len(links) == 3, "lo, the tap, and the pair to the bridge"
    assert "Task namespaces: yes" in ok("solo5ctl", "network", "inspect", "default")
    [row] = json.loads(ok("solo5ctl", "stats", "--no-stream", "--json", one))
    [nic] = row["nics"]
    assert nic["received"]["packets"] > 0
    ok("solo5ctl", "rm", "--force", one)
    assert not (NAMESPACES / f"solo5-{one}").exists()


def test_restarts_by_systemd_keep_it(apart: None, run: Runner) -> None:
    one = web(run, name="one")
    unit = f"solo5-task-{one}.service"
    ok("systemctl", "restart", unit)
    eventually(lambda: serves(one), "it answers after a restart")
    ok("systemctl", "stop", unit)
    assert (NAMESPACES / f"solo5-{one}").exists()
    ok("systemctl", "start", unit)
    eventually(lambda: serves(one), "it answers after a stop and a start")


def test_a_service_that_is_killed_finds_it(apart: None, machine: Machine, run: Runner) -> None:
    machine.expect("solo5-networkd.service: (Main process exited|Failed)")
    one = web(run, name="one")
    ok("systemctl", "kill", "--signal=SIGKILL", "solo5-networkd")
    eventually(lambda: unit_property("solo5-networkd.service", "ActiveState") == "active", "it runs again")
    assert serves(one)
    two = web(run, name="two")
    assert serves(two)


def test_a_killed_start_leaves_no_namespace(apart: None, run: Runner) -> None:
    """kill -9 of the caller, after the namespace is made: it is removed with the task's user."""
    caller = subprocess.Popen(
        ["solo5ctl", "run", "--detach", "--name", "killed", str(GUESTS / "net.spt"), IPV4],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    path = NAMESPACES / "solo5-killed"
    eventually(lambda: path.exists() or caller.poll() is not None, "the namespace is made")
    caller.send_signal(signal.SIGKILL)
    caller.wait()
    sh("solo5ctl", "rm", "--force", "killed")
    eventually(lambda: (sh("solo5ctl", "gc"), not path.exists())[1], "gc removes it", 90)


def test_a_scope_is_refused(apart: None, run: Runner) -> None:
    refused = run.fail("--scope", "--name", "one", str(GUESTS / "net.spt"), IPV4)
    assert refused.returncode == 125
    assert "task one is a scope, and its network has task_namespace" in refused.stderr
    assert not (NAMESPACES / "solo5-one").exists()
