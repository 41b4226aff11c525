from collections.abc import Mapping
from types import MappingProxyType

import pytest

from solo5_systemd.base.names import TaskName
from solo5_systemd.engine.task import Phase, Task, phase
from solo5_systemd.unit.state import ActiveState, UnitState

NAME = TaskName("web")
FIELDS = {"SOLO5_IMAGE": "/srv/a b", "SOLO5_IMAGE_SHA256": "ab", "SOLO5_TENDER": "spt", "SOLO5_MEMORY": "1024"}


def state(
    active: ActiveState = ActiveState.ACTIVE,
    *,
    frozen: bool = False,
    log_fields: Mapping[str, str] = MappingProxyType({}),
) -> UnitState:
    return UnitState(
        task=NAME,
        unit="solo5-task-web.service",
        active=active,
        invocation="1f",
        frozen=frozen,
        main_pid=7,
        started=3,
        ended=4,
        control_group="/solo5.slice/x",
        log_fields=log_fields,
    )


@pytest.mark.parametrize(
    "active, frozen, stalled, expected",
    [
        (ActiveState.ACTIVATING, False, False, Phase.STARTING),
        (ActiveState.ACTIVE, False, False, Phase.RUNNING),
        (ActiveState.ACTIVE, True, False, Phase.FROZEN),
        (ActiveState.ACTIVE, True, True, Phase.HUNG),
        (ActiveState.DEACTIVATING, False, False, Phase.STOPPING),
        (ActiveState.DEACTIVATING, False, True, Phase.HUNG),
        (ActiveState.INACTIVE, False, True, Phase.ENDED),
        (ActiveState.FAILED, True, False, Phase.ENDED),
        (ActiveState.RELOADING, False, False, Phase.RUNNING),
        (ActiveState.UNKNOWN, False, False, Phase.RUNNING),
    ],
)
def test_a_units_state_is_one_word(active: ActiveState, frozen: bool, stalled: bool, expected: Phase) -> None:
    assert phase(state(active, frozen=frozen), hung=stalled) is expected


def test_a_task_shows_what_its_unit_says() -> None:
    task = Task(state=state(log_fields=FIELDS), phase=Phase.RUNNING)
    assert (task.name, task.started) == (NAME, 3)
    assert (task.image, task.sha256, task.memory) == ("/srv/a b", "ab", 1024)


@pytest.mark.parametrize("memory", [None, "", "lots", "-1", "1e3", "²", "٣", "9" * 21, "9" * 5000])
def test_what_the_unit_does_not_say_or_no_number_of_bytes_is_empty_or_zero(memory: str | None) -> None:
    fields = {} if memory is None else {"SOLO5_MEMORY": memory}
    task = Task(state=state(log_fields=fields), phase=Phase.RUNNING)
    assert (task.image, task.sha256, task.memory) == ("", "", 0)
