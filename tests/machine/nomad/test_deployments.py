"""Deployments, reschedules and periodic jobs with tasks of this driver."""

from tests.machine.conftest import Outside, eventually, ok, unit_property
from tests.machine.nomad.agent import NODE_ADDRESS, api
from tests.machine.nomad.jobs import (
    NEVER_AGAIN,
    SERVER,
    Jobs,
    allocations,
    blocked,
    deployment,
    ended,
    hcl,
    network,
    port_hcl,
    registered,
)
from tests.machine.nomad.test_ready import counting, ready

READY = ready('console = "^count 3$"')
NEVER_READY = ready('console = "^never$"', 'deadline = "1s"')
WEB = network(port_hcl("web", to=80))


def update(*lines: str) -> str:
    usual = ('min_healthy_time = "0s"', 'healthy_deadline = "1m"', 'progress_deadline = "2m"')
    return "update {\n" + "".join(f"  {line}\n" for line in (*usual, *lines)) + "}\n"


def succeeds(job: str, version: int) -> None:
    """Wait until the deployment of a job's version is successful."""

    def claim() -> bool:
        found = deployment(job)
        return (found.get("JobVersion"), found.get("Status")) == (version, "successful")

    eventually(claim, f"the deployment of version {version} of {job} is successful")


def versions(job: str) -> list[int]:
    """Return the job versions of the allocations that run, in order."""
    return sorted(alloc["JobVersion"] for alloc in allocations(job) if alloc["ClientStatus"] == "running")


def test_version_that_does_not_become_ready_is_reverted(jobs: Jobs) -> None:
    rule = update("auto_revert = true")
    jobs.run(hcl("revert", counting(100) + READY, job=rule))
    succeeds("revert", 0)
    jobs.submit(hcl("revert", counting(100) + NEVER_READY, job=rule))
    succeeds("revert", 2)
    [failed] = [item for item in api("/v1/job/revert/deployments") if item["JobVersion"] == 1]
    assert failed["Status"] == "failed"
    assert "rolling back to job version 0" in failed["StatusDescription"]
    [unready] = [alloc["ID"] for alloc in allocations("revert") if alloc["JobVersion"] == 1]
    assert any("was not ready within 1 s" in event for event in unready.events())
    assert versions("revert") == [2]
    next(a["ID"] for a in allocations("revert") if a["ClientStatus"] == "running").says("count 3\n")


def test_canary_with_a_static_port_is_not_placed_where_an_old_allocation_has_it(jobs: Jobs, outside: Outside) -> None:
    group = network(port_hcl("web", static=8751, to=80))
    text = hcl("static", SERVER, job=update("canary = 1"), group=group)
    jobs.run(text)
    succeeds("static", 0)
    jobs.submit(text.replace("args = [", 'args = ["--second", '))
    eventually(lambda: blocked("static"), "no node has the port left")
    assert "reserved port collision" in ok("nomad", "job", "status", "static")
    assert versions("static") == [0]
    assert "--ipv4=" in outside.tcp(NODE_ADDRESS, 8751)
    jobs.submit(hcl("static", SERVER, job=update(), group=group))
    succeeds("static", 2)
    assert versions("static") == [2]


def test_service_is_deregistered_for_the_shutdown_delay_before_the_guest_ends(jobs: Jobs) -> None:
    service = 'shutdown_delay = "5s"\nservice {\n  name = "slow"\n  provider = "nomad"\n  port = "web"\n}\n'
    [alloc] = jobs.run(hcl("slow", SERVER, group=NEVER_AGAIN + WEB, task=service))
    eventually(lambda: len(registered("slow")) == 1, "the service is registered")
    name = alloc.unit()
    ok("nomad", "job", "stop", "-detach", "slow")
    eventually(lambda: registered("slow") == [], "the service is deregistered")
    assert unit_property(name, "ActiveState") == "active"
    ended("slow")
    times = {event["Type"]: event["Time"] / 1e9 for event in alloc.task()["Events"]}
    assert times["Killed"] - times["Waiting for shutdown delay"] >= 5
