"""Which units are forgotten tasks of this agent, and which belong to others."""

from dataclasses import replace

import pytest
from tests.support.fakes.tasks import running

from solo5_systemd.base.names import TaskName
from solo5_systemd.nomad.forgotten_tasks import Claims, ForgottenTask, forgotten_tasks
from solo5_systemd.unit.state import UnitState

HOME = "/var/lib/nomad/alloc"
CLAIMS = Claims(names=(), current={}, directories=(HOME,))
RUN = running().state.invocation


def unit(directory: str = f"{HOME}/3fa85f64/alloc", **fields: str) -> UnitState:
    own = {"NOMAD_ALLOC_ID": "3fa85f64", "NOMAD_TASK_NAME": "web", "NOMAD_ALLOC_DIR": directory}
    return replace(running().state, log_fields=own | fields)


def test_a_unit_of_this_agents_that_it_does_not_know_is_suspect() -> None:
    assert forgotten_tasks([unit()], CLAIMS) == (
        ForgottenTask(task=TaskName("web"), invocation=RUN, reason="Nomad's agent has no such task", certain=False),
    )


def test_one_that_the_same_agents_process_started_is_its_own_though_it_has_no_other_task() -> None:
    claims = Claims(names=(), current={}, directories=(), agent="42.1000")
    assert len(forgotten_tasks([unit(SOLO5_AGENT="42.1000")], claims)) == 1
    assert forgotten_tasks([unit(SOLO5_AGENT="42.1001")], claims) == ()
    assert forgotten_tasks([unit(SOLO5_AGENT="")], replace(claims, agent="")) == ()


def test_one_in_whose_place_another_runs_is_forgotten_for_certain() -> None:
    claims = replace(CLAIMS, current={("3fa85f64", "web"): TaskName("next")})
    assert forgotten_tasks([unit()], claims) == (
        ForgottenTask(task=TaskName("web"), invocation=RUN, reason="Nomad runs task next instead", certain=True),
    )
    beside = replace(CLAIMS, current={("3fa85f64", "db"): TaskName("next"), ("other", "web"): TaskName("more")})
    assert [suspect.certain for suspect in forgotten_tasks([unit()], beside)] == [False]


@pytest.mark.parametrize(
    "other, claims",
    [
        (unit(), replace(CLAIMS, names=(TaskName("web"),))),
        (unit("/opt/other/alloc/3fa85f64/alloc"), CLAIMS),
        (unit(f"{HOME}/nested/3fa85f64/alloc"), CLAIMS),
        (running().state, CLAIMS),
        (unit(""), CLAIMS),
        (unit(), replace(CLAIMS, directories=())),
    ],
    ids=["its own", "another agent's", "an agent's below", "solo5ctl's", "without a place", "before any task"],
)
def test_what_may_be_somebodys_is_not_judged(other: UnitState, claims: Claims) -> None:
    assert forgotten_tasks([other], claims) == ()
