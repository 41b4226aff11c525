"""The last messages of a run, by source."""

import pytest

from solo5_systemd.unit.failure_messages import ABORT, ExitMessages, UnitMessage, tender_message

STARTED = "39f53479d3a045ac8e11786248231fbf"
"""MESSAGE_ID= of SD_MESSAGE_UNIT_STARTED, whose text ends with the unit's description."""


@pytest.mark.parametrize(
    "lines, message",
    [
        ([], ""),
        (["  ", ""], ""),
        (["solo5-hvt: no"], "no"),
        (["/opt/x/solo5-spt: no: solo5-spt: yes"], "no: solo5-spt: yes"),
        (["plain words"], "plain words"),
        (["solo5-hvt: adjusting memory to 2097152 bytes", "solo5-hvt: no"], "no"),
        (["solo5-spt: WARNING: --x-exec-heap", "solo5-spt: no", "usage: …"], "no"),
        (["solo5-hvt: a warning", "Fatal error when reading: bad", "KVM: late"], "KVM: late"),
    ],
)
def test_a_tenders_message_is_the_line_with_the_reason_without_its_name(lines: list[str], message: str) -> None:
    assert tender_message(lines) == message


@pytest.mark.parametrize(
    "message, requested",
    [
        (UnitMessage("web: Sent signal SIGTERM to main process 68 (solo5-spt) on client request."), True),
        (UnitMessage("web: Sending signal SIGTERM to process 68 (solo5-spt) on client request."), True),
        (UnitMessage("web: Killed unit cgroup with SIGTERM on client request."), True),
        (UnitMessage("Stopping solo5-task-web.scope - a job's name...", "de5b426a63be47a7b6ac3eaac82e2f6f"), True),
        (UnitMessage("Stopping web"), False),
        (UnitMessage("Started web - web: Sent signal SIGTERM to x on client request.", STARTED), False),
        (UnitMessage("Started web - web: Sent signal SIGTERM to x on client request."), False),
        (UnitMessage("web: Sent signal SIGINT to main process 68 (solo5-spt) on client request."), False),
        (UnitMessage("web: State 'stop-sigterm' timed out. Killing."), False),
    ],
)
def test_a_signal_through_systemd_is_on_its_record(message: UnitMessage, requested: bool) -> None:
    begun = UnitMessage("Started solo5-task-web.scope.", STARTED)
    assert ExitMessages(systemd=[begun, message]).sent_by_systemd(15) is requested
    assert ExitMessages().sent_by_systemd(15) is None, "the record cannot be read"


@pytest.mark.parametrize(
    "line, identity",
    [
        ("web: A process of this unit has been killed by the OOM killer.", "fe6faa94e7774663a0da52717891d8ef"),
        ("web: systemd-oomd killed 1 process(es) in this unit.", "d989611b15e44c9dbf31e3c81256e4ed"),
    ],
)
def test_a_kill_for_want_of_memory_is_on_systemds_record(line: str, identity: str) -> None:
    assert ExitMessages(systemd=[UnitMessage(line, identity)]).oom_killed
    assert not ExitMessages(
        systemd=[UnitMessage(f"Started solo5-task-web.service - {line}", STARTED), UnitMessage(line)]
    ).oom_killed
    assert not ExitMessages(guest=[line], tender=[line]).oom_killed


@pytest.mark.parametrize("line", ["abort \x1b[2J" + "a" * 48_000, "solo5-hvt: \x1b]0;x\x07" + "a" * 48_000])
def test_a_line_that_a_sentence_quotes_is_printable_and_bounded(line: str) -> None:
    for quoted in (ExitMessages(guest=[line + "abort"]).guest_line(ABORT), tender_message([line])):
        assert quoted is not None
        assert quoted.isprintable()
        assert len(quoted) <= 300
