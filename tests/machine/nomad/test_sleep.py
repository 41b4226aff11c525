"""Jobs whose guests sleep: for Nomad they run, and events name what woke them."""

import os
import signal
import time

from tests.machine.conftest import Machine, Outside, eventually, ok
from tests.machine.nomad.agent import NODE_ADDRESS, Agent, plugins
from tests.machine.nomad.jobs import (
    NEVER_AGAIN,
    SCOPE,
    SERVER,
    Jobs,
    allocations,
    happens,
    hcl,
    name_of,
    refusal,
    task,
)
from tests.machine.test_sleep import asleep

PORT = 'network {\n  port "web" {\n    static = 8080\n    to = 80\n  }\n}\n'
IDLE = '\nidle {\n  after = "5s"\n}\n'


def test_a_job_sleeps_and_a_request_wakes_it(jobs: Jobs, outside: Outside, machine: Machine, agent: Agent) -> None:
    machine.expect("plugin|EOF|Unavailable|rpc error")
    [alloc] = jobs.run(hcl("resting", SERVER + IDLE, group=NEVER_AGAIN + PORT))
    happens(alloc, "Asleep: no packet for its idle time")
    assert (asleep(name_of(alloc)), task(alloc)["State"]) == (True, "running")
    assert outside.tcp(NODE_ADDRESS, 8080)
    happens(alloc, f"Woken by TCP {outside.there}:")
    eventually(lambda: asleep(name_of(alloc)), "it sleeps again")
    first = agent.plugin()
    os.kill(first, signal.SIGKILL)
    eventually(lambda: first not in plugins() != [], "another driver is there")
    assert (asleep(name_of(alloc)), task(alloc)["State"]) == (True, "running")
    assert outside.tcp(NODE_ADDRESS, 8080)
    ok("nomad", "job", "stop", "-detach", "resting")
    happens(alloc, "Stopped on request")


def test_a_signal_wakes_it_only_to_end_it(jobs: Jobs, outside: Outside) -> None:
    [alloc] = jobs.run(hcl("resting", SERVER + IDLE, group=NEVER_AGAIN + PORT))
    happens(alloc, "Asleep: no packet for its idle time")
    for number, event in (
        ("SIGUSR1", "SIGUSR1 was not sent"),
        ("SIGSTOP", "Frozen by SIGSTOP, until SIGCONT"),
        ("SIGCONT", "Thawed by SIGCONT"),
    ):
        ok("nomad", "alloc", "signal", "-s", number, alloc, "guest")
        happens(alloc, event)
        assert (asleep(name_of(alloc)), task(alloc)["State"]) == (True, "running"), number
    assert outside.tcp(NODE_ADDRESS, 8080)
    eventually(lambda: not asleep(name_of(alloc)), "its record follows")
    assert task(alloc)["State"] == "running"
    eventually(lambda: asleep(name_of(alloc)), "it sleeps again")
    begun = time.monotonic()
    ok("nomad", "alloc", "signal", "-s", "SIGTERM", alloc, "guest")
    eventually(lambda: task(alloc)["State"] == "dead", "it has ended")
    assert time.monotonic() - begun < 9, "before SIGKILL"


def test_what_has_no_meaning_under_nomad_is_refused(jobs: Jobs) -> None:
    for job, config, text in (
        ("stopping", SERVER + '\nidle {\n  after = "5min"\n  action = "stop"\n}\n', "has ended for Nomad"),
        ("scope", SCOPE + SERVER + IDLE, "is a scope, and to sleep: expected a service"),
        ("short", SERVER + IDLE.replace("5s", "1s"), "expected 5 seconds to 365 days"),
    ):
        jobs.submit(hcl(job, config))
        eventually(lambda job=job: allocations(job), f"{job} is placed")  # type: ignore[misc]
        [alloc] = [each["ID"] for each in allocations(job)]
        eventually(lambda alloc=alloc, text=text: text in refusal(alloc), f"{job} is refused: {text}")  # type: ignore[misc]
