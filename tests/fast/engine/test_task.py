import pytest
from tests.support.fakes.tasks import STARTED, running

from solo5_systemd.engine.task import Phase, Task, phase
from solo5_systemd.unit.state import ActiveState

FIELDS = {"SOLO5_IMAGE": "/srv/a b", "SOLO5_IMAGE_SHA256": "ab", "SOLO5_TENDER": "spt", "SOLO5_MEMORY": "1024"}
STATE = running().state


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
    assert phase(STATE._replace(active=active, frozen=frozen), hung=stalled) is expected


def test_a_task_has_the_state_of_its_unit() -> None:
    task = Task(state=STATE._replace(log_fields=FIELDS), phase=Phase.RUNNING)
    assert (task.name, task.started) == ("web", STARTED)
    assert (task.image, task.sha256, task.memory) == ("/srv/a b", "ab", 1024)


@pytest.mark.parametrize("memory", [None, "", "lots", "-1", "1e3", "²", "٣", "9" * 21, "9" * 5000])
def test_what_the_unit_does_not_say_or_no_number_of_bytes_is_empty_or_zero(memory: str | None) -> None:
    fields = {} if memory is None else {"SOLO5_MEMORY": memory}
    task = Task(state=STATE._replace(log_fields=fields), phase=Phase.RUNNING)
    assert (task.image, task.sha256, task.memory) == ("", "", 0)
