from itertools import islice

from hypothesis import given
from hypothesis import strategies as st
from tests.fast.relay.fakejournal import Journal

from solo5_systemd.journal.lines import Line
from solo5_systemd.relay import line_queue as module
from solo5_systemd.relay.line_queue import CHUNK, LIMIT, OVERHEAD, Lane
from solo5_systemd.relay.state import Progress

NOTICE = b"!"


def lines(count: int, size: int = 10) -> list[Line]:
    journal = Journal()
    return [journal.write(f"{number}\n".rjust(size)) for number in range(count)]


def write_all(lane: Lane) -> bytes:
    written = b""
    while lane.pending:
        chunk = lane.chunk()
        written += chunk
        lane.wrote(len(chunk))
    return written


def test_what_is_offered_is_written_in_order() -> None:
    lane = Lane()
    for line in lines(5):
        lane.offer(line)
    assert write_all(lane) == b"".join(line.data for line in lines(5))
    assert lane.done
    assert lane.progress == Progress(cursor="c4")


def test_a_chunk_is_about_what_a_pipe_holds() -> None:
    lane = Lane()
    for line in lines(10, size=CHUNK // 4):
        lane.offer(line)
    assert len(lane.chunk()) == CHUNK


def test_a_line_written_in_part_is_not_delivered_yet() -> None:
    lane = Lane()
    for line in lines(2):
        lane.offer(line)
    lane.wrote(13)
    assert lane.progress == Progress(cursor="c0", written=3)
    assert lane.chunk() == lines(2)[1].data[3:]


def test_a_lane_that_goes_on_begins_in_the_middle_of_the_line() -> None:
    lane = Lane(progress=Progress(cursor="c0", written=3))
    lane.offer(lines(2)[1])
    assert lane.chunk() == lines(2)[1].data[3:]


def test_memory_is_bounded_and_a_longer_line_still_has_its_turn() -> None:
    lane = Lane()
    first, *rest = lines(4, size=2 * LIMIT)
    lane.offer(first)
    assert not lane.done
    for line in rest:
        lane.offer(line)
    assert lane.gap == rest[-1].place
    assert lane.chunk() == first.data


def test_what_was_passed_over_is_read_again_up_to_the_gap_and_not_further() -> None:
    lane = Lane()
    all_lines = lines(9)
    lane.pass_over(all_lines[3])
    assert not lane.refill(iter(all_lines), 100, fresh=True)
    assert lane.gap is None
    lane.offer(all_lines[4])
    assert write_all(lane) == b"".join(line.data for line in all_lines[:5])


def test_a_gap_whose_end_the_journal_has_lost_is_closed_by_what_comes_after() -> None:
    lane = Lane()
    all_lines = lines(9)
    lane.pass_over(all_lines[3])  # of one time with the fourth and fifth
    assert not lane.refill(iter([*all_lines[:2], all_lines[6]]), 100, fresh=True)
    assert lane.gap is None
    assert write_all(lane) == b"".join(line.data for line in all_lines[:2])


def test_a_reader_that_ends_with_a_file_put_aside_does_not_close_the_gap() -> None:
    lane = Lane()
    all_lines = lines(9)
    for line in all_lines:
        lane.pass_over(line)
    assert not lane.refill(iter(all_lines[:4]), 100, fresh=False)
    assert lane.gap == all_lines[8].place
    assert not lane.refill(iter(all_lines[4:]), 100, fresh=True)
    assert write_all(lane) == b"".join(line.data for line in all_lines)
    assert lane.removed == 0


def test_a_lane_without_a_reader_keeps_only_the_line_written_in_part() -> None:
    lane = Lane()
    all_lines = lines(6)
    for line in all_lines:
        lane.offer(line)
    lane.wrote(15)
    lane.shelve()
    assert lane.gap == all_lines[5].place
    assert write_all(lane) == all_lines[1].data[5:]
    assert lane.last == "c1"
    assert not lane.refill(iter(all_lines[2:]), 100, fresh=True)
    assert write_all(lane) == b"".join(line.data for line in all_lines[2:])


def test_lines_that_the_journal_has_removed_are_counted() -> None:
    lane = Lane()
    all_lines = lines(9)
    lane.offer(all_lines[0])
    for line in all_lines[1:8]:
        lane.pass_over(line)
    assert not lane.refill(iter(all_lines[4:]), 100, fresh=True)
    assert lane.removed == 3
    assert write_all(lane) == b"".join(line.data for line in (all_lines[0], *all_lines[4:8]))


def test_those_of_a_gap_that_was_there_from_the_beginning_are_not() -> None:
    all_lines = lines(9)
    lane = Lane(gap=all_lines[5].place)
    lane.pass_over(all_lines[6])
    assert not lane.refill(iter(all_lines[3:]), 100, fresh=True)
    assert lane.removed == 0


def test_a_notice_is_written_alone_and_leaves_the_place_in_the_journal_as_it_was() -> None:
    lane = Lane()
    first, second = lines(2)
    lane.offer(first)
    lane.tell(b"a notice\n")
    lane.offer(second)
    chunks = []
    while lane.pending:
        chunks.append((lane.progress.cursor, lane.chunk()))
        lane.wrote(len(chunks[-1][1]))
    assert chunks == [("", first.data), ("c0", b"a notice\n"), ("c0", second.data)]
    assert lane.progress == Progress(cursor="c1")


@given(st.lists(st.sampled_from(["line", "write", "part", "refill", "shelve", "tell"]), max_size=120))
def test_whatever_happens_each_line_is_written_once_and_in_order(steps: list[str]) -> None:
    journal, lane, written = Journal(), Lane(), bytearray()
    room, module.LIMIT = module.LIMIT, 5 * (OVERHEAD + 10)
    try:
        for step in [*steps, *["refill", "write"] * 80]:
            if step == "line":
                lane.offer(journal.write(f"line {len(journal.lines):04}\n"))
            elif step == "refill" and lane.hungry:
                after = int(lane.last[1:]) + 1 if lane.last else 0
                lane.refill(islice(journal.lines, after, None), 2, fresh=True)
            elif step == "shelve":
                lane.shelve()
            elif step == "tell":
                lane.tell(NOTICE)
            elif step in ("write", "part"):
                chunk = lane.chunk()
                chunk = chunk[: 7 if step == "part" and chunk != NOTICE else None]
                written += chunk
                lane.wrote(len(chunk))
    finally:
        module.LIMIT = room
    assert bytes(written).replace(NOTICE, b"") == b"".join(line.data for line in journal.lines)
    assert lane.done
    assert lane.removed == 0
