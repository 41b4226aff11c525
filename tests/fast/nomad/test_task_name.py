"""A task's name follows from Nomad's id alone, whatever the id is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fast.nomad.values import ALLOCATION, TASK_ID

from solo5_systemd.base.names import task_name, task_of_unit, task_service
from solo5_systemd.nomad.workload import name_of


def test_a_name_is_the_same_in_every_process() -> None:
    assert name_of(TASK_ID) == "web-3fa85f64-097df3c4e4c0"


@pytest.mark.parametrize(
    "task_id, beginning",
    [
        ("", "task-none-"),
        ("/", "task-none-"),
        ("//", "task-none-"),
        ("a", "a-a-"),
        ("a/b", "a-a-"),
        (f"{ALLOCATION}/web/server/1", "web_server-3fa85f64-"),
        (f"{ALLOCATION}/../../etc/1", "etc-3fa85f64-"),
        (f"{ALLOCATION}/-web@x.service/1", "web_x.service-3fa85f64-"),
        (f"{ALLOCATION}/{'w' * 300}/1", f"{'w' * 40}-3fa85f64-"),
        (f"{ALLOCATION}/\0\n/1", "task-3fa85f64-"),
        (f"{ALLOCATION}/été/1", "t_-3fa85f64-"),
        (f"{ALLOCATION}/%n$x/1", "n_x-3fa85f64-"),
    ],
)
def test_a_hostile_id_has_a_name_too(task_id: str, beginning: str) -> None:
    assert name_of(task_id).startswith(beginning)


IDS = st.text() | st.text(alphabet="a/-.@\0é", max_size=12)


@given(IDS)
def test_any_name_fits_systemd_and_leads_back_from_its_unit(task_id: str) -> None:
    name = name_of(task_id)
    assert task_name(name) == name
    assert len(name) <= 62
    assert task_of_unit(task_service(name)) == name


@given(IDS, IDS)
def test_two_ids_have_two_names(one: str, other: str) -> None:
    assert (name_of(one) == name_of(other)) == (one == other)
