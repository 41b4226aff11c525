from dataclasses import replace

import pytest
from tests.fast.nomad.test_handle import state
from tests.support.fakes.tasks import ended, running

from solo5_systemd.base.errors import NoSuchTaskError
from solo5_systemd.nomad.handle import verify
from solo5_systemd.unit.state import UnitState

RUNNING, ENDED = running().state, ended().state
STORED = replace(state(), invocation=RUNNING.invocation)


@pytest.mark.parametrize("found", [RUNNING, ENDED], ids=["running", "ended"])
def test_the_same_run_in_the_same_boot_is_adopted(found: UnitState) -> None:
    assert verify(STORED, STORED.boot, found) is found


@pytest.mark.parametrize(
    "boot, found, words",
    [
        ("another", RUNNING, "task web ended with the previous boot of the host."),
        (STORED.boot, None, "does not exist: systemd has no unit solo5-task-web.service."),
        (
            STORED.boot,
            replace(RUNNING, invocation="f" * 32),
            f"solo5-task-web.service is another invocation ({'f' * 32}; expected {RUNNING.invocation}).",
        ),
        (STORED.boot, replace(RUNNING, invocation=""), "(none; expected"),
    ],
)
def test_anything_else_is_gone_and_says_why(boot: str, found: UnitState | None, words: str) -> None:
    with pytest.raises(NoSuchTaskError) as caught:
        verify(STORED, boot, found)
    assert words in str(caught.value)
