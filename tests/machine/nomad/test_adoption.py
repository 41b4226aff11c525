"""The outcome and the last line of a task that ended while the driver and its services were down."""

from tests.machine.conftest import GUESTS, Machine, eventually, ok, unit_property
from tests.machine.nomad.agent import Agent
from tests.machine.nomad.jobs import ADDRESSES, NEVER_AGAIN, Jobs, allocation, ended, hcl, logs, says, status, unit

COUNTING = f'unikernel = "{GUESTS}/net.spt"\nargs = ["--count=100", {ADDRESSES}]'


def counted(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("count ")]


def said(name: str) -> list[str]:
    """Return the journal lines of a task."""
    ok("journalctl", "--sync")
    return counted(ok("journalctl", "--quiet", "--output=cat", "--unit", name))


def test_what_ended_without_driver_and_relay_has_its_outcome_and_all_its_lines(
    agent: Agent, jobs: Jobs, machine: Machine
) -> None:
    [alloc] = jobs.run(hcl("unwatched", COUNTING, group=NEVER_AGAIN))
    says(alloc, "count 3")
    name = unit(alloc)
    agent.stop()
    ok("systemctl", "stop", "solo5-relay")
    before = len(said(name))
    eventually(lambda: len(said(name)) > before + 5, "it writes while the relay is down")
    ok("systemctl", "kill", "--kill-whom=main", "--signal=KILL", name)
    eventually(lambda: unit_property(name, "ActiveState") == "failed", "it ends")
    lines = said(name)
    agent.start()
    assert ended("unwatched") == alloc
    assert allocation(alloc)["ClientStatus"] == "failed", status(alloc)
    assert "SIGKILL" in status(alloc)
    eventually(lambda: counted(logs(alloc)) == lines, "each line has arrived, once")
