"""A guest's console is in Nomad's log exactly once and in order, also if a service of ours or of Nomad's is killed."""

import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.machine.conftest import GUESTS, Machine, Outside, eventually, ok, sh, unit_property
from tests.machine.nomad.agent import DATA, NODE_ADDRESS, Agent, one, plugins
from tests.machine.nomad.jobs import (
    ECHO,
    EVERY_LINE,
    NEVER_AGAIN,
    TALKER,
    Allocation,
    Jobs,
    allocations,
    ended,
    guest,
    hcl,
    placed,
)

LINES = 60_000
FLOOD = guest("flood.spt", f"lines={LINES}", "bytes=64", more=EVERY_LINE)


def log(alloc: Allocation) -> bytes:
    """Return the console in Nomad's log files, the oldest file first."""
    files = DATA.joinpath("alloc", alloc, "alloc", "logs").glob("guest.stdout.*")
    return b"".join(path.read_bytes() for path in sorted(files, key=lambda path: int(path.suffix[1:])))


def relay() -> list[int]:
    pid = int(unit_property("solo5-relay.service", "MainPID"))
    return [pid] if pid else []


def collectors() -> list[int]:
    """Return the process IDs of Nomad's log collectors."""
    return [int(pid) for pid in sh("pgrep", "--full", "^/usr/local/bin/nomad logmon").stdout.split()]


def kill(find: Callable[[], list[int]]) -> None:
    """Kill a process with SIGKILL, and wait for its successor."""
    pid = one(find, "process")
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: find() not in ([], [pid]), "another comes in its place")


def test_flood_is_complete_though_relay_plugin_journald_and_agent_are_killed(
    agent: Agent, jobs: Jobs, machine: Machine
) -> None:
    machine.expect("solo5-relay.service: (Main process exited|Failed with result)|Failed to start solo5-relay.service")
    machine.expect("plugin is shut down|plugin process exited|failed to reattach to plugin|closing stream.*EOF")
    ok("journalctl", "--rotate")  # a file that comes to its largest size has journald write one line twice
    jobs.run(hcl("beside", f'unikernel = "{GUESTS}/sleeper.spt"'))  # as long as it runs, the relay does
    jobs.submit(hcl("flood", FLOOD, kind="batch"))
    alloc = placed("flood")
    eventually(lambda: log(alloc), "it writes")
    kill(relay)
    kill(plugins)
    ok("systemctl", "restart", "systemd-journald")
    agent.kill()
    kill(relay)
    agent.start()
    kill(relay)
    assert ended("flood") == alloc
    eventually(lambda: f"line {LINES} ".encode() in log(alloc), "the last line is there")
    heads = [line.rstrip(b".") for line in log(alloc).splitlines() if line.startswith(b"line ")]
    assert heads == [b"line %d " % number for number in range(1, LINES + 1)]


def test_an_end_is_reported_with_a_warning_where_the_log_is_not_read(
    agent: Agent, jobs: Jobs, machine: Machine
) -> None:
    """While its collector is stopped, Nomad cannot end the allocation. The event of the end is there."""
    machine.expect("last lines of task .* not delivered to Nomad for 15 s: its log FIFO is full and not read")
    machine.expect("last lines of task .* not delivered")
    machine.expect("plugin|EOF|Unavailable|rpc error")
    flood = guest("flood.spt", "lines=2000", "bytes=1000", "after=3", more=EVERY_LINE)
    eventually(lambda: not collectors(), "no task before this one has a collector")
    kill(plugins)  # an agent that has taken over its predecessor's plugin does not read what that logs
    eventually(lambda: agent.driver().get("Healthy"), "the driver works")
    jobs.submit(hcl("unread", flood, kind="batch"))
    eventually(lambda: list(Path("/run/solo5/relay").glob("*.json")), "the relay has the FIFOs")
    collector = one(collectors, "process")
    os.kill(collector, signal.SIGSTOP)
    try:
        [alloc] = (each["ID"] for each in allocations("unread"))
        eventually(lambda: alloc.about().get("TaskStates"), "Nomad's server has events")
        alloc.happens("Terminated: Exit Code: 0")
        eventually(lambda: "its log FIFO is full and not read" in agent.log(), "the driver logs a warning")
    finally:
        os.kill(collector, signal.SIGCONT)


class Talker:
    """A guest that prints the length of each datagram, which is the number of the line."""

    def __init__(self, jobs: Jobs, outside: Outside) -> None:
        self._outside = outside
        self.sent = 0
        [self.alloc] = jobs.run(hcl("talker", TALKER, group=NEVER_AGAIN + ECHO))
        self.alloc.says("serving")

    def write(self, times: int) -> None:
        for _ in range(times):
            self.sent += 1
            text = "x" * self.sent
            assert self._outside.udp(NODE_ADDRESS, 7007, text) == text

    def is_whole(self) -> None:
        expected = list(range(1, self.sent + 1))
        eventually(lambda: len(self._said()) >= self.sent, "all lines are there")
        assert self._said() == expected

    def _said(self) -> list[int]:
        return [int(size) for size in re.findall(rb"to port 7, ([0-9]+) bytes\n", log(self.alloc))]


@pytest.fixture
def talker(jobs: Jobs, outside: Outside) -> Talker:
    return Talker(jobs, outside)


def test_collector_that_was_killed_gets_what_it_missed_from_the_next_agent(agent: Agent, talker: Talker) -> None:
    """Lines that a killed collector has read and not written are lost by Nomad, so it is idle here.

    In the journal each line has its task's names, also while Nomad is stopped.
    """
    talker.write(3)
    talker.is_whole()
    time.sleep(0.5)
    os.kill(one(collectors, "process"), signal.SIGKILL)
    talker.write(5)
    name = talker.alloc.unit()
    agent.stop()
    talker.write(2)
    ok("journalctl", "--sync")
    lines = [json.loads(line) for line in _journal("NOMAD_JOB_NAME=talker", f"NOMAD_ALLOC_ID={talker.alloc}")]
    agent.start()
    talker.is_whole()
    said = [line for line in lines if "to port 7" in line["MESSAGE"]]
    assert len(said) == talker.sent
    for line in said:
        assert line["NOMAD_TASK_NAME"] == "guest"
        assert line["NOMAD_NAMESPACE"] == "default"
        assert line["_SYSTEMD_UNIT"] == name
        assert line["SOLO5_TASK"] == talker.alloc.name()
        assert re.fullmatch("[0-9a-f]{64}", line["SOLO5_IMAGE_SHA256"])
    talker.write(2)
    talker.is_whole()


def _journal(*matches: str) -> list[str]:
    return ok("journalctl", "--quiet", "--no-pager", "--output=json", *matches).splitlines()


def test_the_last_lines_have_every_field(agent: Agent, jobs: Jobs) -> None:
    """journald looks up the process of a line when it reads it, and a short-lived process has exited by then."""
    for number in range(5):
        jobs.submit(hcl(f"short-{number}", f'unikernel = "{GUESTS}/hello.spt"', kind="batch"))
    for number in range(5):
        alloc = ended(f"short-{number}")
        alloc.says("solo5_exit")
        assert len([line for line in _journal(f"NOMAD_ALLOC_ID={alloc}") if "solo5_exit" in line]) == 1
