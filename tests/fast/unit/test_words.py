"""Who said what at the end of a run."""

import pytest

from solo5_systemd.unit.words import LastWords, tender_message


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
def test_a_tenders_message_is_the_line_that_says_why_without_its_name(lines: list[str], message: str) -> None:
    assert tender_message(lines) == message


@pytest.mark.parametrize(
    "remark, requested",
    [
        ("web: Sent signal SIGTERM to main process 68 (solo5-spt) on client request.", True),
        ("web: Sending signal SIGTERM to process 68 (solo5-spt) on client request.", True),
        ("web: Killed unit cgroup with SIGTERM on client request.", True),
        ("Stopping solo5-task-web.scope - Solo5 unikernel web.spt (spt)...", True),
        ("web: Sent signal SIGINT to main process 68 (solo5-spt) on client request.", False),
        ("web: State 'stop-sigterm' timed out. Killing.", False),
    ],
)
def test_a_signal_through_systemd_is_on_its_record(remark: str, requested: bool) -> None:
    assert LastWords(systemd=["Started solo5-task-web.scope.", remark]).requested(15) is requested


def test_of_a_signal_nothing_is_known_where_the_record_cannot_be_read() -> None:
    assert LastWords().requested(15) is None


@pytest.mark.parametrize("line", ["web: A process of this unit has been killed by the OOM killer.",
                                  "web: systemd-oomd killed 1 process(es) in this unit."])  # fmt: skip
def test_a_kill_for_want_of_memory_is_on_systemds_record(line: str) -> None:
    assert LastWords(systemd=[line]).oom_killed
    assert not LastWords(guest=[line], tender=[line]).oom_killed


@pytest.mark.parametrize(
    "line", ["Solo5: ABORT: mem.c:54: Not enough memory", "Solo5: abort: x.c:1: not enough memory"]
)
def test_a_guest_says_that_it_has_no_room(line: str) -> None:
    assert LastWords(guest=["x", line, "y"]).no_room == line


@pytest.mark.parametrize(
    "line, exhausted",
    [
        ("Fatal error: exception Out_of_memory", True),
        ("Fatal error: exception Out of memory", True),
        ("Fatal error: out of memory", True),
        ("served a page about exception Out_of_memory", False),
    ],
)
def test_a_guest_says_that_it_has_used_up_its_memory(line: str, exhausted: bool) -> None:
    assert (LastWords(guest=[line]).exhausted is not None) is exhausted
