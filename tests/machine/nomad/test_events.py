"""What `nomad alloc status` tells of a task's life: all of it, once, and never in a flood."""

import os
import signal

from tests.machine.conftest import GUESTS, Machine, eventually, ok
from tests.machine.nomad.agent import Agent, plugins
from tests.machine.nomad.jobs import SERVER, SLEEPER, Jobs, ended, events, happens, hcl, says, unit

BURST = 4
"""Events of a task that may follow each other at once."""


def ours(alloc: str) -> list[str]:
    """What this driver told, in order."""
    return [said for kind, _, said in (event.partition(": ") for event in events(alloc)) if kind == "Driver"]


def test_start_is_told_step_by_step_and_only_once(jobs: Jobs, agent: Agent, machine: Machine) -> None:
    machine.expect("plugin|EOF|Unavailable|rpc error")
    [alloc] = jobs.run(hcl("told", SERVER))
    service = unit(alloc)
    happens(alloc, f"Started {service}")
    told = ours(alloc)
    assert [said.partition(" ")[0] for said in told] == ["Preflight", "NIC", "Started"]
    assert "Preflight passed: net.hvt (" in told[0]
    assert told[0].endswith("NIC service")
    invocation = ok("systemctl", "show", "--property=InvocationID", "--value", service).strip()
    assert told[2] == f"Started {service}, invocation {invocation}"
    first = agent.plugin()
    os.kill(first, signal.SIGKILL)
    eventually(lambda: first not in plugins() != [], "another driver is there")
    agent.stop()
    agent.start()
    eventually(lambda: agent.driver().get("Healthy"), "the node knows of it")
    ok("nomad", "job", "stop", "-detach", "told")
    happens(alloc, "Stopped on request")
    assert ours(alloc)[:-1] == told
    assert sum("Stopped on request" in said for said in ours(alloc)) == 1


def test_end_is_told_with_the_consoles_last_lines(jobs: Jobs) -> None:
    config = f'unikernel = "{GUESTS}/hello.spt"\nargs = ["exit=3"]'
    alloc = ended(jobs.submit(hcl("three", config, kind="batch")))
    happens(alloc, "The guest exited with 3. Last on its console: ")
    happens(alloc, "argument 1: 'exit=3'")


def test_what_recurs_is_summed_up(jobs: Jobs) -> None:
    [alloc] = jobs.run(hcl("restless", SLEEPER))
    says(alloc, "sleeping")
    for _ in range(10):
        for name in ("SIGSTOP", "SIGCONT"):
            ok("nomad", "alloc", "signal", "-s", name, alloc, "guest")
    ok("nomad", "job", "stop", "-detach", "restless")
    happens(alloc, f"Thawed by SIGCONT … and {20 - BURST - 1} more just before")


def test_network_that_another_program_broke_and_ours_repaired_is_told(jobs: Jobs, machine: Machine) -> None:
    machine.expect("another program changed")
    [alloc] = jobs.run(hcl("flushed", SERVER))
    says(alloc, "serving")
    ok("nft", "delete", "table", "bridge", "solo5")
    happens(alloc, "Network repaired: ")
