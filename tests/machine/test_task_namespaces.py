"""The network namespaces of tasks: a start, restarts by systemd, kills and removals, with real units."""

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.machine.conftest import GUESTS, Machine, Runner, address, eventually, ok, sh, unit_property
from tests.machine.test_network import IPV4, web

NAMESPACES = Path("/run/netns")


@pytest.fixture
def apart(machine: Machine) -> Iterator[None]:
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
    assert len(links) == 2, "lo and the tap"
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


@pytest.mark.parametrize("guest", ["net", "sleeper"])
def test_a_scope_runs_in_a_namespace_of_its_own(apart: None, tmp_path: Path, guest: str) -> None:
    """The guest with a NIC answers; that without one has an empty namespace."""
    options = [IPV4] if guest == "net" else []
    command = ["solo5ctl", "run", "--scope", "--name", "one", str(GUESTS / f"{guest}.spt"), *options]
    with (tmp_path / "log").open("wb") as log:
        tender = subprocess.Popen(command, stdout=log)
    try:
        eventually(lambda: "solo5-spt" in Path(f"/proc/{tender.pid}/cmdline").read_text().split("\0")[0], "it runs")
        assert Path(f"/proc/{tender.pid}/ns/net").readlink() != Path("/proc/1/ns/net").readlink()
        if guest == "net":
            eventually(lambda: serves("one"), "it answers")
    finally:
        tender.kill()
        tender.wait()
        ok("solo5ctl", "gc")
