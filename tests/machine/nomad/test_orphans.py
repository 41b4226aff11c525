"""A unit that the agent has forgotten is ended by the driver, and nothing of anybody else's."""

from collections.abc import Iterator

import pytest
from tests.machine.conftest import Machine, eventually, ok, sh
from tests.machine.nomad.agent import DATA, USUAL, Agent
from tests.machine.nomad.jobs import SLEEPER, Jobs, allocations, hcl, running, task, unit

WATCHFUL = USUAL + 'gc {\n  dangling_tasks {\n    period = "1s"\n    creation_grace = "10s"\n  }\n}\n'
LATE = SLEEPER + '\nready {\n  console = "^never$"\n  deadline = "20s"\n}'


@pytest.fixture(scope="module")
def watchful(installed: Agent) -> Iterator[None]:
    """The agent, with an eye on what it has forgotten."""
    installed.stop()
    installed.configure(WATCHFUL)
    installed.start()
    yield
    installed.stop()
    installed.configure(USUAL)
    installed.start()
    eventually(lambda: installed.driver().get("Healthy"), "the driver works")


@pytest.fixture
def strangers(machine: Machine) -> Iterator[list[str]]:
    """The units that a test starts by itself."""
    units: list[str] = []
    yield units
    sh("systemctl", "stop", *units)


def started(units: list[str], name: str, *fields: str) -> str:
    """A unit that says such things of itself."""
    units.append(f"solo5-task-{name}.service")
    said = (f"--property=LogExtraFields={field}" for field in fields)
    ok("systemd-run", "--quiet", f"--unit={units[-1]}", *said, "sleep", "infinity")
    return units[-1]


def is_active(name: str) -> bool:
    return sh("systemctl", "is-active", "--quiet", name).returncode == 0


def units() -> list[str]:
    lines = ok("systemctl", "list-units", "--all", "--plain", "--no-legend", "solo5-task-*.service").splitlines()
    return [line.split()[0] for line in lines]


@pytest.mark.usefixtures("watchful")
def test_a_unit_whose_start_was_never_answered_is_ended_for_the_one_in_its_place(
    agent: Agent, jobs: Jobs, machine: Machine
) -> None:
    """A plugin that dies alone is asked for the same start again; with its agent, for another one."""
    machine.expect("failed to reattach to plugin|is ended: Nomad runs .* in its place")
    jobs.submit(hcl("unheard", LATE))
    eventually(lambda: len(units()) == 1 and is_active(units()[0]), "its unit runs, and waits to be ready")
    [lost] = units()
    agent.kill_with_plugin()
    assert is_active(lost)
    agent.start()
    eventually(lambda: any(name != lost for name in units()), "another start of it")
    eventually(lambda: lost not in units(), "the first is ended")
    assert len(units()) == 1
    assert f"Task {lost.removeprefix('solo5-task-').removesuffix('.service')} is ended" in agent.log()


@pytest.mark.usefixtures("watchful")
def test_a_task_that_stays_unknown_is_ended_and_those_of_others_are_not(
    agent: Agent, jobs: Jobs, machine: Machine, strangers: list[str]
) -> None:
    machine.expect("is ended: Nomad's agent does not know it")
    [alloc] = jobs.run(hcl("own", SLEEPER))
    here = f"NOMAD_ALLOC_DIR={DATA}/alloc/{alloc}/alloc"
    lost = started(strangers, "lost", "NOMAD_ALLOC_ID=another", "NOMAD_TASK_NAME=guest", here)
    theirs = started(strangers, "theirs", "NOMAD_ALLOC_ID=x", "NOMAD_ALLOC_DIR=/opt/other/alloc/x/alloc")
    persons = started(strangers, "persons", "SOLO5_TASK=persons")
    eventually(lambda: not is_active(lost), "the forgotten one is ended", 30)
    assert is_active(theirs)
    assert is_active(persons)
    running("own")
    assert task(alloc)["Restarts"] == 0
    assert [each["ID"] for each in allocations("own")] == [alloc]
    assert is_active(unit(alloc))
