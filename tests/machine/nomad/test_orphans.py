"""The driver stops a forgotten task, and no unit of anything else."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tests.machine.conftest import GUESTS, Machine, eventually, ok, sh
from tests.machine.nomad.agent import DATA, WATCHFUL, Agent
from tests.machine.nomad.jobs import SCOPE, SLEEPER, Jobs, allocations, hcl, running, units

LATE = SLEEPER + '\nready {\n  console = "^never$"\n  deadline = "10s"\n}'

pytestmark = pytest.mark.configured(WATCHFUL)


class Strangers:
    """Units that a test starts by itself, with log fields of its choice."""

    def __init__(self, children: ExitStack) -> None:
        self.units: list[str] = []
        self._children = children

    def service(self, name: str, *fields: str) -> str:
        self.units.append(f"solo5-task-{name}.service")
        options = (f"--property=LogExtraFields={field}" for field in fields)
        ok("systemd-run", "--quiet", f"--unit={self.units[-1]}", *options, "sleep", "infinity")
        return self.units[-1]

    def scope(self, name: str, *fields: str) -> str:
        unit = f"solo5-task-{name}.scope"
        self.units.append(unit)
        options = (word for field in fields for word in ("--log-field", field))
        command = ("solo5ctl", "run", "--scope", "--name", name, *options, f"{GUESTS}/sleeper.spt")
        self._children.enter_context(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        eventually(lambda: is_active(unit), f"{unit} runs")
        return unit


@pytest.fixture
def strangers(machine: Machine) -> Iterator[Strangers]:
    with ExitStack() as children:
        subject = Strangers(children)
        yield subject
        sh("systemctl", "stop", *subject.units)
        sh("solo5ctl", "gc")  # the users of scopes that are over


def is_active(name: str) -> bool:
    return sh("systemctl", "is-active", "--quiet", name).returncode == 0


def name_of(unit: str) -> str:
    return unit.removeprefix("solo5-task-").rpartition(".")[0]


def test_units_whose_start_was_never_answered_are_ended_for_those_in_their_place(
    agent: Agent, jobs: Jobs, machine: Machine
) -> None:
    """If the plugin alone is killed, Nomad repeats the same start; if the agent is, too, it starts the task again."""
    machine.expect("failed to reattach to plugin|forgotten task .* stopped: Nomad runs task .* instead")
    jobs.submit(hcl("unheard", LATE))
    jobs.submit(hcl("unheard-scope", SCOPE + LATE))
    eventually(lambda: len(units()) == 2 and all(map(is_active, units())), "their units run, and wait to be ready")
    lost = set(units())
    agent.kill_with_plugin()
    assert all(map(is_active, lost))
    agent.start()
    eventually(lambda: not lost & set(units()), "the first are ended")
    names = {name_of(each) for each in lost}
    eventually(lambda: len({by for name, by in replaced(agent) if name in names}) == 2, "and both are in the log")


def replaced(agent: Agent) -> list[tuple[str, str]]:
    """Return forgotten tasks with their successors, from the agent's log."""
    return re.findall(r"forgotten task (\S+) stopped: Nomad runs task (\S+) instead", agent.log())


def test_tasks_that_stay_unknown_are_ended_and_those_of_others_are_not(
    agent: Agent, jobs: Jobs, machine: Machine, strangers: Strangers
) -> None:
    machine.expect("stopped: Nomad's agent has no such task")
    [alloc] = jobs.run(hcl("own", SLEEPER))
    [scope] = jobs.run(hcl("own-scope", SCOPE + SLEEPER))
    own = [alloc.unit(), scope.unit()]
    here = ("NOMAD_ALLOC_ID=another", "NOMAD_TASK_NAME=guest", f"NOMAD_ALLOC_DIR={DATA}/alloc/{alloc}/alloc")
    theirs = ("NOMAD_ALLOC_ID=x", "NOMAD_ALLOC_DIR=/opt/other/alloc/x/alloc")
    lost = [strangers.service("lost", *here), strangers.scope("lost-scope", *here)]
    others = [
        strangers.service("theirs", *theirs),
        strangers.scope("theirs-scope", *theirs),
        strangers.service("persons", "SOLO5_TASK=persons"),
        strangers.scope("persons-scope"),
    ]
    eventually(lambda: not any(map(is_active, lost)), "the forgotten ones are ended")
    assert all(map(is_active, (*others, *own)))
    for job, id_ in (("own", alloc), ("own-scope", scope)):
        running(job)
        assert id_.task()["Restarts"] == 0
        assert [each["ID"] for each in allocations(job)] == [id_]
