"""The plugin, the agent, or both are killed, restarted or down; a running guest is not affected."""

import os
import signal

from tests.machine.conftest import GUESTS, Machine, eventually, ok, sh, unit_property
from tests.machine.nomad.agent import Agent, plugins
from tests.machine.nomad.jobs import COUNTER, ECHO, NEVER_AGAIN, SCOPE, TALKER, Jobs, ended, guest, hcl, running
from tests.machine.test_survival import counted


def test_agent_stops_in_time_and_takes_its_plugin_along_and_no_scope(agent: Agent, jobs: Jobs) -> None:
    [alloc] = jobs.run(hcl("talker", f"{COUNTER}\n{SCOPE}", group=NEVER_AGAIN))
    alloc.says("count 3")
    run, plugin = unit_property(alloc.unit(), "InvocationID"), agent.plugin()
    agent.stop()
    eventually(lambda: not plugins(), "the plugin is dead")
    agent.start()
    assert agent.plugin() != plugin
    before = len(counted(alloc.logs()))
    eventually(lambda: len(counted(alloc.logs())) > before, "its log goes on")
    assert (unit_property(alloc.unit(), "InvocationID"), alloc.task()["Restarts"]) == (run, 0)
    ok("nomad", "job", "stop", "-detach", "talker")
    assert ended("talker") == alloc
    assert alloc.about()["ClientStatus"] == "complete", alloc.status()


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
        alloc.happens("Terminated")
        agent.kill()
    finally:
        os.kill(networkd, signal.SIGCONT)
    agent.start()
    assert ended("destroyed") == alloc
    assert alloc.about()["ClientStatus"] == "complete", alloc.status()
    types = [event.partition(":")[0] for event in alloc.events()]
    assert (types.count("Started"), types.count("Terminated")) == (1, 2)
    assert len({event for event in alloc.events() if event.startswith("Terminated")}) == 1


def test_task_that_ends_while_the_agent_is_stopped_has_its_true_outcome(
    agent: Agent, jobs: Jobs, machine: Machine
) -> None:
    """One that was removed is started once more."""
    machine.expect("error recovering task|failed to recover|does not exist")
    [alloc] = jobs.run(hcl("unseen", guest("sleeper.spt", "for=4"), kind="batch"))
    [other] = jobs.run(hcl("removed", f'unikernel = "{GUESTS}/sleeper.spt"'))
    ends, removed = alloc.unit(), other.unit()
    agent.stop()
    ok("solo5ctl", "rm", "--force", removed.removeprefix("solo5-task-").removesuffix(".service"))
    eventually(lambda: unit_property(ends, "ActiveState") == "inactive", "the guest ends")
    agent.start()
    assert ended("unseen") == alloc
    assert alloc.about()["ClientStatus"] == "complete", alloc.status()
    assert "Exit Code: 0" in alloc.status()
    eventually(lambda: len(sh("pgrep", "solo5-spt").stdout.split()) == 1, "another run of what was removed")
    running("removed")
    assert other.unit() != removed
