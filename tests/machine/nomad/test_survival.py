"""One allocation and one client with one connection, while each service behind it is killed.

After each, in a row: the same process runs, the first connection is up, no message and no datagram is missing, Nomad
has the same allocation without a restart, and `nomad alloc logs` goes on with every line once.
"""

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.machine.conftest import Machine, Outside, eventually, kill_main, systemctl, unit_property
from tests.machine.nomad.agent import NODE_ADDRESS, USUAL, Agent, plugins
from tests.machine.nomad.jobs import COUNTER, ECHO, NEVER_AGAIN, Allocation, Jobs, allocations, hcl, running
from tests.machine.test_survival import complete, counted
from tests.machine.traffic import Traffic, traffic

JOB = "survivor"
NOMAD = Path("/usr/local/bin/nomad")


class Guest:
    """The allocation, and the properties that must not change."""

    def __init__(self, alloc: Allocation, client: Traffic) -> None:
        self.client = client
        self._alloc = alloc
        self._unit = alloc.unit()
        self._process = self._what_runs()

    def _what_runs(self) -> tuple[str, str]:
        return unit_property(self._unit, "InvocationID"), unit_property(self._unit, "MainPID")

    def notices_nothing(self) -> None:
        self.client.flows()
        assert self._what_runs() == self._process
        count = len(counted(self._alloc.logs()))
        eventually(lambda: len(counted(self._alloc.logs())) > count, "its log goes on")
        assert complete(self._alloc.logs()), self._alloc.logs()
        running(JOB)
        assert [alloc["ID"] for alloc in allocations(JOB)] == [self._alloc]
        assert self._alloc.task()["Restarts"] == 0


@pytest.fixture(scope="module")
def guest(installed: Agent, outside: Outside) -> Iterator[Guest]:
    installed.use(USUAL)
    jobs = Jobs()
    try:
        [alloc] = jobs.run(hcl(JOB, COUNTER, group=NEVER_AGAIN + ECHO))
        alloc.says("serving")
        with traffic(outside, NODE_ADDRESS, 7007) as client:
            yield Guest(alloc, client)
    finally:
        jobs.purge()


def plugin_is_killed(agent: Agent) -> None:
    agent.kill_plugin()


def relay_is_killed(agent: Agent) -> None:
    kill_main("solo5-relay.service")


def all_of_ours_are_killed_at_once(agent: Agent) -> None:
    services = [int(unit_property(f"solo5-{name}.service", "MainPID")) for name in ("relay", "networkd")]
    first = agent.plugin()
    for pid in (first, *services):
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: plugins() and first not in plugins(), "the agent launches another plugin")


def agent_is_killed(agent: Agent) -> None:
    plugin = agent.plugin()
    agent.kill()
    agent.start()
    assert agent.plugin() == plugin, "the one that lived on serves the new agent"


def agent_and_plugin_are_killed(agent: Agent) -> None:
    agent.kill_with_plugin()
    agent.start()


def agent_is_replaced_while_it_is_down(agent: Agent) -> None:
    """Replaced by a copy with another inode, as by a package manager."""
    agent.stop()
    later = NOMAD.with_name("nomad.later")
    shutil.copy(NOMAD, later)
    later.rename(NOMAD)
    agent.start()


def everything_under_us_is_restarted(agent: Agent) -> None:
    systemctl("restart", "dbus")
    systemctl("restart", "systemd-journald")
    systemctl("daemon-reexec")


def plugin_is_killed_while_systemd_and_the_bus_are_away(agent: Agent) -> None:
    """The new plugin has to recover the task while PID 1 and the bus are not reachable."""
    first = agent.plugin()
    os.kill(first, signal.SIGKILL)
    while not plugins() or first in plugins():
        systemctl("daemon-reexec")
    for _ in range(3):
        systemctl("daemon-reexec")
        systemctl("restart", "dbus")


@pytest.mark.parametrize(
    "disturb",
    [
        plugin_is_killed,
        relay_is_killed,
        all_of_ours_are_killed_at_once,
        agent_is_killed,
        agent_and_plugin_are_killed,
        agent_is_replaced_while_it_is_down,
        everything_under_us_is_restarted,
        plugin_is_killed_while_systemd_and_the_bus_are_away,
    ],
)
def test_a_running_allocation_survives(
    agent: Agent, guest: Guest, machine: Machine, disturb: Callable[[Agent], None]
) -> None:
    machine.expect("D-Bus|bus|Failed with result|Failed to start|Main process exited")
    machine.expect("plugin is shut down|plugin process exited|failed to reattach to plugin|closing stream.*EOF")
    machine.expect("wait for task .* failed, retrying|service name .* not known")
    guest.notices_nothing()
    disturb(agent)
    guest.notices_nothing()
    eventually(lambda: agent.driver().get("Healthy"), "Nomad has the driver as healthy")
