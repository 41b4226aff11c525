"""A restart that cannot help is withheld only where the guest has not run."""

import pytest

from solo5_systemd.base.names import TaskName
from solo5_systemd.pid1.clear import may_be_withheld, not_restarted
from solo5_systemd.unit.outcome import Ending, Outcome
from solo5_systemd.unit.state import ActiveState, MainCode, UnitState


def end(ending: Ending, sentence: str = "it ended", futile: str = "it has to change", exit_code: int = 1) -> Outcome:
    return Outcome(ending=ending, sentence=sentence, futile=futile, exit_code=exit_code)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (end(Ending.TENDER_REFUSED, "the tender refused: Invalid argument"), True),
        (
            end(Ending.TENDER_REFUSED, "the tender refused: Error allocating guest memory: Cannot allocate memory"),
            False,
        ),
        (end(Ending.TENDER_REFUSED, "the tender refused: Could not attach: Device or resource busy"), False),
        (end(Ending.GUEST_OUT_OF_MEMORY), True),
        (end(Ending.GUEST_OUT_OF_MEMORY, futile=""), False),
        (end(Ending.OUT_OF_MEMORY), False),
        (end(Ending.FORBIDDEN_CALL), False),
        (end(Ending.EXITED, exit_code=64), False),
        (end(Ending.EXITED, exit_code=0, futile="nothing failed"), False),
    ],
)
def test_a_restart_is_withheld_where_the_start_would_fail_again(found: Outcome, expected: bool) -> None:
    assert found.fails_at_start == expected


@pytest.mark.parametrize(
    ("code", "status", "expected"),
    [
        (MainCode.EXITED, 1, True),
        (MainCode.EXITED, 255, True),
        (MainCode.DUMPED, 6, True),
        (MainCode.EXITED, 6, False),
        (MainCode.EXITED, 2, False),
        (MainCode.KILLED, 9, False),
        (MainCode.KILLED, 1, False),
    ],
)
def test_after_other_ends_the_journal_is_not_read(code: int, status: int, expected: bool) -> None:
    state = UnitState(
        task=TaskName("web"), unit="web.service", active=ActiveState.FAILED, main_code=code, main_status=status,
        log_fields={},
    )  # fmt: skip
    assert may_be_withheld(state) == expected


def test_a_restart_that_systemd_does_not_make_is_reported_with_the_reason() -> None:
    wrong = end(
        Ending.EXITED, "the guest exited with 64 (invalid arguments)", "its arguments have to change", exit_code=64
    )
    assert not_restarted("web", wrong, "on-failure") == (
        "the guest exited with 64 (invalid arguments); a retry cannot help: its arguments have to change. "
        "Restart=on-failure does not start it again. After a change: systemctl start web"
    )
    assert not_restarted("web", wrong, "no") == ""
    assert not_restarted("web", end(Ending.ABORTED, futile=""), "always") == ""
    assert not_restarted("web", end(Ending.EXITED, futile="nothing failed", exit_code=0), "on-failure") == ""
    assert not_restarted("web", end(Ending.STOPPED), "always") == ""
