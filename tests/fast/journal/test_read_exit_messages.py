from collections.abc import Sequence
from pathlib import Path

import pytest

from solo5_systemd.base.names import TaskName
from solo5_systemd.journal import console, reader
from solo5_systemd.journal.lines import JournalPosition, Line, Stream
from solo5_systemd.unit.state import ActiveState, UnitState

UNIT = "solo5-task-web.service"


def line(text: str, realtime: int, since_boot: int) -> Line:
    position = JournalPosition(cursor=text, monotonic=since_boot)
    return Line(unit=UNIT, stream=Stream.STDOUT, data=text.encode(), position=position, realtime=realtime)


class Reader:
    """Journals whose clock was set back during the run of `web` that began at 5000, or 70 since boot: the host's, and
    the namespace of its console."""

    asked: Sequence[str] = ()

    def __init__(self, matches: Sequence[str], namespace: str = "") -> None:
        Reader.asked = matches
        self.is_of_consoles = namespace == "guests"

    def last(self, count: int) -> list[tuple[Line, str]]:
        if f"_SYSTEMD_UNIT={UNIT}" in self.asked and self.is_of_consoles:
            lines = [line("set back", 1000, 90), line("run", 5010, 80), line("before", 4990, 60)]
            return [(each, "") for each in lines[:count]]
        remarks = [(line("set back", 1000, 90), "4f"), (line("before", 4990, 60), "")]
        of_pid_1 = {f"UNIT={UNIT}", "_PID=1"} < set(self.asked) and not self.is_of_consoles
        return remarks[:count] if of_pid_1 else []

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize(
    ("main_start", "said"), [(70, ["run", "set back"]), (0, ["run"])], ids=["a service", "of which nobody says more"]
)
def test_a_run_has_its_exit_messages_after_the_clock_was_set_back(
    monkeypatch: pytest.MonkeyPatch, main_start: int, said: list[str]
) -> None:
    monkeypatch.setattr(reader, "JournalReader", Reader)
    state = UnitState(
        task=TaskName("web"),
        unit=UNIT,
        active=ActiveState.FAILED,
        started=5000,
        main_start=main_start,
        log_fields={"SOLO5_LOG_NAMESPACE": "guests"},
    )
    words = console.read_exit_messages(state)
    assert words.guest == said
    assert [text for text, _ in words.systemd] == said[1:], "PID 1 writes to the host's journal"
    assert f"_BOOT_ID={Path('/proc/sys/kernel/random/boot_id').read_text().strip().replace('-', '')}" in Reader.asked
