import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.base.names import (
    TaskName,
    awaited_target,
    declared_outcome_target,
    declared_task_of_unit,
    device_name,
    disk_name,
    host_name,
    is_instance,
    is_task_name,
    network_name,
    network_service,
    outcome_target,
    own_task_name,
    task_name,
    task_of_unit,
    task_scope,
    task_service,
    template_of,
)

UNIT_NAME = re.compile(r"[A-Za-z0-9:_.\\@-]{1,255}")  # systemd.unit(5)
TASKS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}", fullmatch=True).map(TaskName)


@pytest.mark.parametrize(
    "text", ["a", "0", "web-1_x.y", "a" * 128, "A..b", "web@1", "a@-", "a@b-c..d", "a@" + "1" * 126]
)
def test_a_task_name_is_taken_as_it_is(text: str) -> None:
    assert task_name(text) == text


@pytest.mark.parametrize(
    "text", ["", "-a", ".a", "_a", "a b", "a/b", "..", "@1", "a b@1", "a\n", "\na", "ä", "٣", "a" * 129, "a\0", "a%b"]
)
def test_a_task_name_that_could_escape_is_refused_and_quoted(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="expected 1 to 128") as caught:
        task_name(text)
    assert repr(text) in str(caught.value) or text == "@1"


@pytest.mark.parametrize(
    "text", ["@a/b", "@a@b", r"@a\x2d", "@a:b", "@a b", "@..", "@.", "@a-..-b", "@.-", "@" + "1" * 126]
)
def test_an_instance_that_could_escape_is_refused_and_quoted(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="expected letters, digits") as caught:
        task_name(f"web{text}")
    assert repr(text[1:]) in str(caught.value)
    assert not is_task_name(f"web{text}")


def test_a_template_is_no_task() -> None:
    with pytest.raises(
        InvalidRequestError, match=r"web@ is a template: expected the name of an instance, such as web@1"
    ):
        task_name("web@")


def test_only_a_declaration_has_instances() -> None:
    assert own_task_name("web") == "web"
    with pytest.raises(InvalidRequestError, match="'web@1' is that of an instance of a template"):
        own_task_name("web@1")
    assert task_of_unit("solo5-task-web@1.service") is None
    assert declared_task_of_unit("web@1.service") == "web@1"


def test_an_instance_has_units_and_a_host_name_of_its_own() -> None:
    web = task_name("web@1")
    assert (is_instance(web), is_instance(task_name("web"))) == (True, False)
    assert template_of(web) == "web@"
    assert host_name(web) == "web-1"
    assert declared_outcome_target(web) == "solo5-outcome-declared@web@1.target"
    assert awaited_target(web) == "solo5-awaited-web@1.target"


@pytest.mark.parametrize(
    ("name", "most", "usable", "others"),
    [
        (device_name, 67, "service net0 9", "a-b a_b a.b a:b a=b ä"),  # the alphabet of a tender's options
        (network_name, 32, "default 0-x.y_z", "-a .hidden a/b"),
        (disk_name, 64, "data 0-x.y_z", "-a .hidden a/b ../a a:b ä a\0b"),
    ],
)
def test_a_name_is_taken_as_it_is_or_refused(name: Callable[[str], str], most: int, usable: str, others: str) -> None:
    assert [name(text) for text in (*usable.split(), "a" * most)] == [*usable.split(), "a" * most]
    for text in (*others.split(), "", "a b", "a\n", "a" * (most + 1)):
        with pytest.raises(InvalidRequestError, match=f"expected 1 to {most}"):
            name(text)


@given(TASKS)
def test_every_unit_of_a_task_has_a_name_that_systemd_takes(task: TaskName) -> None:
    units = [task_service(task), task_scope(task), network_service(task), outcome_target(task)]
    assert all(UNIT_NAME.fullmatch(unit) for unit in units)
    assert len(set(units)) == 4


@given(TASKS)
def test_a_task_is_found_again_from_its_unit(task: TaskName) -> None:
    assert task_of_unit(task_service(task)) == task_of_unit(task_scope(task)) == task


@pytest.mark.parametrize(
    "unit",
    [
        "solo5-task-.service",
        "solo5-task-a.socket",
        "solo5-task-a",
        "solo5-network@a.service",
        "xsolo5-task-a.service",
        "solo5-task--a.service",
        "service",
        "",
    ],
)
def test_a_unit_that_is_no_tasks_has_no_task(unit: str) -> None:
    assert task_of_unit(unit) is None
