"""The plugin, the agent, or both are killed, restarted or down; a running guest is not affected."""

import os
import signal

from tests.machine.conftest import GUESTS, Machine, eventually, ok, sh, unit_property
from tests.machine.nomad.agent import Agent, plugins
from tests.machine.nomad.jobs import (
    COUNTER,
    ECHO,
    NEVER_AGAIN,
    SCOPE,
    TALKER,
    Jobs,
    allocation,
    ended,
    events,
    guest,
    happens,
    hcl,
    logs,
    running,
    says,
    status,
    task,
    unit,
)
from tests.machine.test_survival import counted


def test_agent_stops_in_time_and_takes_its_plugin_along_and_no_scope(agent: Agent, jobs: Jobs) -> None:
    [alloc] = jobs.run(hcl("talker", f"{COUNTER}\n{SCOPE}", group=NEVER_AGAIN))
    says(alloc, "count 3")
    run, plugin = unit_property(unit(alloc), "InvocationID"), agent.plugin()
    agent.stop()
    eventually(lambda: not plugins(), "the plugin is dead")
    agent.start()
    assert agent.plugin() != plugin
    before = len(counted(logs(alloc)))
    eventually(lambda: len(counted(logs(alloc))) > before, "its log goes on")
    assert (unit_property(unit(alloc), "InvocationID"), task(alloc)["Restarts"]) == (run, 0)
    ok("nomad", "job", "stop", "-detach", "talker")
    assert ended("talker") == alloc
    assert allocation(alloc)["ClientStatus"] == "complete", status(alloc)


def test_agent_killed_before_its_destroy_is_answered_has_the_same_end_twice_and_starts_nothing(
    agent: Agent, jobs: Jobs, machine: Machine
) -> None:
    """DestroyTask waits for the network to be released. By then the agent has persisted the event of the end only."""
    machine.expect("closing stream|transport is closing|reattached plugin|failed to start logmon|logmon shutdown")
    [alloc] = jobs.run(hcl("destroyed", TALKER, kind="batch", group=NEVER_AGAIN + ECHO))
    networkd = int(unit_property("solo5-networkd.service", "MainPID"))
    os.kill(networkd, signal.SIGSTOP)
    try:
        ok("nomad", "job", "stop", "-detach", "destroyed")
        happens(alloc, "Terminated")
        agent.kill()
    finally:
        os.kill(networkd, signal.SIGCONT)
    agent.start()
    assert ended("destroyed") == alloc
    assert allocation(alloc)["ClientStatus"] == "complete", status(alloc)
    types = [event.partition(":")[0] for event in events(alloc)]
    assert (types.count("Started"), types.count("Terminated")) == (1, 2)
    assert len({event for event in events(alloc) if event.startswith("Terminated")}) == 1


def test_task_that_ends_while_nobody_looks_has_its_true_outcome(agent: Agent, jobs: Jobs, machine: Machine) -> None:
    """One that was removed is started once more."""
    machine.expect("error recovering task|failed to recover|does not exist")
    [alloc] = jobs.run(hcl("unseen", guest("sleeper.spt", "for=4"), kind="batch"))
    [other] = jobs.run(hcl("removed", f'unikernel = "{GUESTS}/sleeper.spt"'))
    ends, removed = unit(alloc), unit(other)
    agent.stop()
    ok("solo5ctl", "rm", "--force", removed.removeprefix("solo5-task-").removesuffix(".service"))
    eventually(lambda: unit_property(ends, "ActiveState") == "inactive", "the guest ends")
    agent.start()
    assert ended("unseen") == alloc
    assert allocation(alloc)["ClientStatus"] == "complete", status(alloc)
    assert "Exit Code: 0" in status(alloc)
    eventually(lambda: len(sh("pgrep", "solo5-spt").stdout.split()) == 1, "another run of what was removed")
    running("removed")
    assert unit(other) != removed
