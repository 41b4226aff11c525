"""The driver in the node's record: detected, healthy, attributes."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.machine.conftest import Machine, eventually, ok, sh
from tests.machine.nomad.agent import STRICT, UNIT, USUAL, Agent
from tests.machine.nomad.jobs import SLEEPER, Jobs, allocations, blocked, hcl, running

TENDERS = [Path("/usr/local/bin/solo5-hvt"), Path("/usr/local/bin/solo5-spt")]


def test_node_tells_what_it_can_run(agent: Agent) -> None:
    driver = agent.driver()
    assert (driver["Detected"], driver["Healthy"], driver["HealthDescription"]) == (True, True, "Healthy")
    shown = ok("nomad", "node", "status", "-self", "-verbose")
    for line in ("driver.solo5.hvt ", "driver.solo5.spt ", "driver.solo5.version ", "driver.solo5.networks "):
        assert line in shown


def test_missing_tenders_make_it_unhealthy_until_they_are_back(agent: Agent, machine: Machine) -> None:
    """From the agent's start on: a fingerprint of a healthy driver is made each half minute only."""
    machine.expect("solo5-(hvt|spt): not found")
    away = [path.rename(path.with_suffix(".away")) for path in TENDERS]
    try:
        agent.restart(USUAL)
        eventually(lambda: not agent.driver()["Healthy"], "the driver is unhealthy")
        assert "solo5-hvt: not found. Install Solo5" in agent.driver()["HealthDescription"]
        assert agent.driver()["HealthDescription"] in ok("nomad", "node", "status", "-self", "-verbose")
    finally:
        for path in away:
            path.rename(path.with_suffix(""))
    eventually(lambda: agent.driver()["Healthy"], "healthy again by itself")


CONTROLLERS = Path("/sys/fs/cgroup/cgroup.controllers")


@contextmanager
def controllers(names: str, tmp_path: Path) -> Iterator[None]:
    """Mount a file with these names over the unified hierarchy's list of controllers."""
    file = tmp_path / "controllers"
    file.write_text(names)
    ok("mount", "--bind", str(file), str(CONTROLLERS))
    try:
        yield
    finally:
        ok("umount", str(CONTROLLERS))


def test_node_whose_limits_do_not_hold_gets_no_task(agent: Agent, jobs: Jobs, machine: Machine, tmp_path: Path) -> None:
    """Missing controllers make the driver unhealthy, with the reason, unless `allow_missing_controllers` is set."""
    machine.expect("cgroups: version 2 without")
    with controllers("cpuset io", tmp_path):
        agent.restart(STRICT)
        eventually(lambda: agent.driver().get("Healthy") is False, "the driver is unhealthy")
        shown = ok("nomad", "node", "status", "-self", "-verbose")
        assert "cgroups: version 2 without cpu, memory, pids. Limits of tasks do not hold" in shown
        assert re.search(r"driver\.solo5\.cgroup\.problem += limits do not hold: version 2 without cpu", shown)
        job = jobs.submit(hcl("unlimited", SLEEPER))
        eventually(lambda: blocked(job), "the job waits for a node")
        assert allocations(job) == []
    with controllers("cpuset cpu io memory pids", tmp_path):
        eventually(lambda: agent.driver().get("Healthy"), "the driver is healthy")
        running(job)


def node_status() -> str:
    return ok("nomad", "node", "status", "-self", "-verbose")


UNUSABLE = {
    "wrong": ('image_paths = ["relative"]', r"plugin\.solo5\.config\.image_paths"),
    "disabled": (f"{USUAL}enabled = false", r"solo5 +false +false +disabled: plugin\.solo5\.config\.enabled is false"),
}


def test_wrong_value_or_false_is_an_undetected_driver_with_the_reason(agent: Agent, machine: Machine) -> None:
    """A misspelt key is named by the agent, which ends."""
    machine.expect("image_paths is 'relative'|enabled is false|image_path")
    try:
        for config, shown in UNUSABLE.values():
            agent.restart(config)
            eventually(lambda shown=shown: re.search(shown, node_status()), "the node has the reason")  # type: ignore[misc]
            assert agent.driver().get("Detected") is False
        agent.stop()
        agent.configure('image_path = ["/srv"]')
        sh("systemctl", "start", UNIT)
        eventually(lambda: sh("systemctl", "is-active", UNIT).stdout.strip() == "failed", "the agent gives up")
        eventually(lambda: "image_path" in agent.log(), "and the log has the reason")
    finally:
        agent.restart(USUAL)
    eventually(lambda: agent.driver().get("Healthy"), "the driver is back")


def test_idle_driver_keeps_one_process(agent: Agent) -> None:
    children = sh("pgrep", "--parent", str(agent.plugin())).stdout.split()
    assert children == []
