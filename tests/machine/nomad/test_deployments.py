"""Deployments, reschedules and periodic jobs with tasks of this driver."""

from typing import Any

from tests.machine.conftest import GUESTS, Outside, eventually, ok, unit_property
from tests.machine.nomad.agent import NODE_ADDRESS, api
from tests.machine.nomad.jobs import (
    NEVER_AGAIN,
    SERVER,
    Jobs,
    allocations,
    blocked,
    deployment,
    ended,
    events,
    hcl,
    registered,
    says,
    task,
    unit,
)

READY = '\nready {\n  console = "^count 3$"\n}'
NEVER_READY = '\nready {\n  console = "^never$"\n  deadline = "1s"\n}'
WEB = 'network {\n  port "web" {\n    to = 80\n  }\n}\n'


def counting(milliseconds: int) -> str:
    return f'unikernel = "{GUESTS}/net.hvt"\nargs = ["--count={milliseconds}"]'


def update(*lines: str) -> str:
    usual = ('min_healthy_time = "0s"', 'healthy_deadline = "1m"', 'progress_deadline = "2m"')
    return "update {\n" + "".join(f"  {line}\n" for line in (*usual, *lines)) + "}\n"


def becomes(job: str, status: str, version: int) -> dict[str, Any]:
    """Wait until the deployment of a job's version has a status, and return it."""

    def claim() -> bool:
        found = deployment(job)
        return (found.get("JobVersion"), found.get("Status")) == (version, status)

    eventually(claim, f"the deployment of version {version} of {job} is {status}")
    return deployment(job)


def versions(job: str, status: str = "running") -> list[int]:
    """Return the job versions of the allocations that have a client status, in order."""
    return sorted(alloc["JobVersion"] for alloc in allocations(job) if alloc["ClientStatus"] == status)


def test_version_that_does_not_become_ready_is_reverted(jobs: Jobs) -> None:
    rule = update("auto_revert = true")
    jobs.run(hcl("revert", counting(100) + READY, job=rule))
    becomes("revert", "successful", 0)
    jobs.submit(hcl("revert", counting(100) + NEVER_READY, job=rule))
    becomes("revert", "successful", 2)
    [failed] = [item for item in api("/v1/job/revert/deployments") if item["JobVersion"] == 1]
    assert failed["Status"] == "failed"
    assert "rolling back to job version 0" in failed["StatusDescription"]
    [unready] = [alloc["ID"] for alloc in allocations("revert") if alloc["JobVersion"] == 1]
    assert any("was not ready within 1 s" in event for event in events(unready))
    assert versions("revert") == [2]
    says(next(a["ID"] for a in allocations("revert") if a["ClientStatus"] == "running"), "count 3\n")


def test_canary_with_a_static_port_is_placed_beside_no_old_allocation(jobs: Jobs, outside: Outside) -> None:
    group = WEB.replace("to", "static = 8751\n    to")
    text = hcl("static", SERVER, job=update("canary = 1"), group=group)
    jobs.run(text)
    becomes("static", "successful", 0)
    jobs.submit(text.replace("args = [", 'args = ["--second", '))
    eventually(lambda: blocked("static"), "no node has the port left")
    assert "reserved port collision" in ok("nomad", "job", "status", "static")
    assert versions("static") == [0]
    assert "--ipv4=" in outside.tcp(NODE_ADDRESS, 8751)
    jobs.submit(hcl("static", SERVER, job=update(), group=group))
    becomes("static", "successful", 2)
    assert versions("static") == [2]


def test_service_is_deregistered_for_the_shutdown_delay_before_the_guest_ends(jobs: Jobs) -> None:
    service = 'shutdown_delay = "5s"\nservice {\n  name = "slow"\n  provider = "nomad"\n  port = "web"\n}\n'
    [alloc] = jobs.run(hcl("slow", SERVER, group=NEVER_AGAIN + WEB, task=service))
    eventually(lambda: len(registered("slow")) == 1, "the service is registered")
    name = unit(alloc)
    ok("nomad", "job", "stop", "-detach", "slow")
    eventually(lambda: registered("slow") == [], "the service is deregistered")
    assert unit_property(name, "ActiveState") == "active"
    ended("slow")
    times = {event["Type"]: event["Time"] / 1e9 for event in task(alloc)["Events"]}
    assert times["Killed"] - times["Waiting for shutdown delay"] >= 5
