"""A task with a `ready` block, and the effect on deployments and services."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.machine.conftest import GUESTS, Machine, eventually, inspect, ok, unit_property
from tests.machine.nomad.agent import Agent
from tests.machine.nomad.jobs import (
    ADDRESSES,
    NEVER_AGAIN,
    SERVER,
    TWO_STARTS,
    Jobs,
    block,
    deployment,
    ended,
    hcl,
    network,
    placed,
    port_hcl,
    running,
    units,
)

PORTS = network(port_hcl("web", to=80), port_hcl("echo", to=7))
UPDATE = block("update", min_healthy_time="0s", healthy_deadline="30s", progress_deadline="1m")


def ready(*lines: str) -> str:
    """Return a job's `ready` block."""
    return "\nready {\n" + "".join(f"  {line}\n" for line in lines) + "}"


def counting(milliseconds: int) -> str:
    """Return a guest that prints `count 1`, `count 2`, … from its start on."""
    return f'unikernel = "{GUESTS}/net.hvt"\nargs = ["--count={milliseconds}", {ADDRESSES}]'


def test_deployment_is_healthy_when_the_guest_is_ready_and_no_sooner(jobs: Jobs) -> None:
    jobs.submit(hcl("counting", counting(500) + ready('console = "^count [6-9]$"'), job=UPDATE))
    alloc = placed("counting")
    alloc.written("count 1\n")
    assert alloc.about()["ClientStatus"] == "pending"
    eventually(lambda: deployment("counting").get("Status") == "successful", "the deployment is over")
    alloc.says("count 6\n")
    [event] = [event for event in alloc.events() if "Ready after" in event]
    assert event.endswith("console line “count 6”")


def test_deployment_fails_with_a_guest_that_is_not_ready_in_time(jobs: Jobs) -> None:
    config = counting(200) + ready('tcp = "81"', 'deadline = "2s"')
    alloc = ended(jobs.submit(hcl("late", config, group=NEVER_AGAIN, job=UPDATE)))
    message = alloc.refusal()
    assert "was not ready within 2 s: tcp 10." in message
    assert "81: connection refused" in message
    assert "Last console lines: " in message
    assert "“count " in message
    eventually(lambda: deployment("late").get("Status") == "failed", "the deployment is over")
    assert units() == []
    alloc.written("count 1\n")


def test_start_that_waits_is_undone_when_its_agent_is_killed(jobs: Jobs, agent: Agent, machine: Machine) -> None:
    machine.expect("plugin|EOF|Unavailable|rpc error|failed to stop|failed to destroy")
    jobs.submit(hcl("waiting", counting(500) + ready('console = "^count 10$"')))
    eventually(lambda: units() != [], "it runs")
    [first] = units()
    agent.kill()
    eventually(lambda: units() == [], "its start has been undone")
    agent.start()
    running("waiting")
    assert first not in units()
    assert len(units()) == 1


@contextmanager
def cut_off(service: str) -> Iterator[None]:
    """Cut off the guest by a table of the operator's; the guest keeps running. A tap that is set down is restored."""
    [nic] = inspect(service.removeprefix("solo5-task-").removesuffix(".service"))["nics"]
    chain = "chain out { type filter hook postrouting priority filter; policy accept; oifname %s drop; };"
    ok("nft", f"table bridge cut {{ {chain % nic['tap']} }}")
    yield
    ok("nft", "delete", "table", "bridge", "cut")


def test_loss_and_return_are_reported_by_a_driver_that_was_killed_meanwhile(
    jobs: Jobs, agent: Agent, machine: Machine
) -> None:
    machine.expect("plugin|EOF|Unavailable|rpc error")
    [alloc] = jobs.run(hcl("unsteady", SERVER + ready('tcp = "web"', 'interval = "200ms"'), group=NEVER_AGAIN + PORTS))
    agent.kill_plugin()
    with cut_off(alloc.unit()):
        alloc.happens("No longer ready: tcp 10.")
    alloc.happens("Ready again after")
    assert alloc.task()["State"] == "running"
    assert sum("No longer ready" in event for event in alloc.events()) == 1
    eventually(lambda: agent.driver().get("Healthy"), "the driver is healthy again")


def test_loss_ends_a_task_whose_policy_is_to_start_it_again(jobs: Jobs) -> None:
    rule = ready('tcp = "web"', 'interval = "200ms"', 'on_loss = "restart"')
    [alloc] = jobs.run(hcl("restless", SERVER + rule, group=TWO_STARTS + PORTS))
    first = alloc.unit()
    invocation = unit_property(first, "InvocationID")
    with cut_off(first):
        alloc.happens("its restart policy applies")
        alloc.happens("Stopped because it was no longer ready (tcp 10.")
        eventually(lambda: alloc.task()["Restarts"] == 1, "it is started again")
    eventually(lambda: alloc.task()["State"] == "running", "and is ready again")
    assert unit_property(alloc.unit(), "InvocationID") != invocation
