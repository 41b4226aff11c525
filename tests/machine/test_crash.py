"""Whatever of ours or of the system's dies, what runs goes on, and nothing is forgotten."""

import re
from pathlib import Path

from tests.machine.conftest import Machine, Runner, eventually, inspect, ok, says, sh, systemctl


def test_outcome_survives_reexecution_of_systemd(run: Runner) -> None:
    name = run("hello.spt", "exit=4")
    ok("solo5ctl", "wait", name)
    before = inspect(name)["outcome"]
    systemctl("daemon-reexec")
    assert inspect(name)["outcome"] == before


def test_tender_killed_gives_everything_back(run: Runner) -> None:
    name = run("net.hvt", "--ipv4={net.service.ipv4_cidr}", options=("-p", "8080:80"))
    says(name, "02:")
    tap = inspect(name)["nics"][0]["tap"]
    ok("kill", "-KILL", str(inspect(name)["pid"]))
    eventually(lambda: sh("ip", "link", "show", tap).returncode != 0, "the tap is gone, with nobody of ours asked")
    assert "8080" not in ok("nft", "list", "ruleset")


def test_link_of_a_running_guest_that_is_deleted_is_restored_and_told(machine: Machine, run: Runner) -> None:
    name = run("net.spt", "--ipv4={net.service.ipv4_cidr}", name="cut-off")
    says(name, "02:")
    tap = inspect(name)["nics"][0]["tap"]
    state = "was missing, down or not on its bridge, or had lost a setting"
    lost = f"network repaired: tap {tap} {state}: it is restored"
    machine.expect(re.escape(lost))
    ok("ip", "link", "delete", tap)
    log = ("journalctl", "--quiet", "--output=cat", "--unit=solo5-networkd.service")
    eventually(lambda: lost in ok(*log).splitlines(), "the loss is in the journal")
    assert inspect(name)["phase"] == "running"
    ok("ping", "-c1", "-W5", inspect(name)["nics"][0]["ipv4"].partition("/")[0])
    ok("solo5ctl", "rm", "--force", name)
    assert sh("solo5ctl", "inspect", name).returncode == 125
    assert sh("ip", "link", "show", tap).returncode != 0
    assert list(Path("/run/solo5/network/tasks").iterdir()) == []


def test_gc_finds_nothing_of_anybody_elses(machine: Machine, run: Runner) -> None:
    name = run("net.spt", "--ipv4={net.service.ipv4_cidr}")
    says(name, "02:")
    before = machine.snapshot()
    assert inspect(name)["name"] in ok("solo5ctl", "ps", "--quiet")
    ok("solo5ctl", "gc", "--dry-run")
    assert machine.snapshot() == before
    ok("solo5ctl", "gc")
    assert machine.snapshot() == before
