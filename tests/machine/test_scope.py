"""`--scope`: the tender takes the caller's place, accounted and limited like any task."""

import subprocess

from .conftest import GUESTS, Machine, eventually, inspect, ok, sh, unit_property


def test_scope_is_the_callers_own_child(machine: Machine) -> None:
    with subprocess.Popen(
        ["solo5ctl", "run", "--scope", "--name", "mine", "-m", "32M", f"{GUESTS}/sleeper.hvt"], stdout=-1, stderr=-1
    ) as tender:
        assert tender.stdout is not None
        eventually(
            lambda: sh("systemctl", "is-active", "solo5-task-mine.scope").stdout.strip() == "active", "the scope"
        )
        eventually(
            lambda: sh("pidof", "solo5-hvt").stdout.strip() == str(tender.pid), "the tender has the caller's process"
        )
        assert unit_property("solo5-task-mine.scope", "Slice") == "solo5.slice"
        assert unit_property("solo5-task-mine.scope", "MemoryMax") == str(32 << 20)
        assert inspect("mine")["phase"] == "running"
        ok("solo5ctl", "stop", "mine")
        tender.communicate(timeout=60)
    assert tender.returncode == 1, "hvt's own answer to TERM"
    assert sh("solo5ctl", "inspect", "mine").returncode == 125, "of an ended scope nothing is kept"


def test_scope_passes_the_guests_status_and_drops_privileges(machine: Machine) -> None:
    done = sh("solo5ctl", "run", "--scope", "--name", "status", f"{GUESTS}/hello.spt", "exit=5")
    assert done.returncode == 5
    assert "exit=5" in done.stdout


def test_scope_with_a_network_gives_it_back(machine: Machine) -> None:
    with subprocess.Popen(
        ["solo5ctl", "run", "--scope", "--name", "netscope", f"{GUESTS}/net.spt", "--ipv4={net.service.ipv4_cidr}"],
        stdout=-1, stderr=-1,
    ) as tender:  # fmt: skip
        eventually(lambda: sh("solo5ctl", "inspect", "netscope").returncode == 0, "the scope")
        leases = inspect("netscope")["nics"]
        address = leases[0]["ipv4"].partition("/")[0]
        eventually(lambda: sh("ping", "-c1", "-W1", address).returncode == 0, "it answers")
        tender.kill()
        tender.communicate()
