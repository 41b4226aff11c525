from hypothesis import given
from hypothesis import strategies as st
from tests.support.fakes.journal import Journal

from solo5_systemd.journal.lines import Line, Stream
from solo5_systemd.relay import line_queue as module
from solo5_systemd.relay.line_queue import (
    CHUNK_SIZE,
    LINE_OVERHEAD,
    MEMORY_LIMIT,
    LineQueue,
    StreamPosition,
    removed_notice,
)

NOTICE = b"!"


def lines(count: int, size: int = 10) -> list[Line]:
    journal = Journal()
    return [journal.write(f"{number}\n".rjust(size)) for number in range(count)]


def write_all(queue: LineQueue) -> bytes:
    written = b""
    while queue.next_chunk():
        chunk = queue.next_chunk()
        written += chunk
        queue.advance(len(chunk))
    return written


def test_a_queue_without_lines_has_no_deque_of_its_own() -> None:
    queue, other = LineQueue(), LineQueue()
    [line] = lines(1)
    for empty in (lambda: write_all(queue), queue.evict):
        queue.offer(line)
        assert queue.next_chunk()
        assert not other.next_chunk()
        empty()
        assert queue._lines is module.NO_LINES
    assert not module.NO_LINES


def test_a_chunk_has_about_the_capacity_of_a_pipe() -> None:
    queue = LineQueue()
    for line in lines(10, size=CHUNK_SIZE // 4):
        queue.offer(line)
    assert len(queue.next_chunk()) == CHUNK_SIZE


def test_a_partly_written_line_is_not_delivered_and_a_restored_queue_starts_within_it() -> None:
    queue = LineQueue()
    for line in lines(2):
        queue.offer(line)
    queue.advance(13)
    restored = LineQueue(position=queue.position)
    restored.offer(lines(2)[1])
    assert queue.next_chunk() == restored.next_chunk() == lines(2)[1].data[3:]


def test_memory_is_bounded_and_a_longer_line_is_accepted() -> None:
    queue = LineQueue()
    first, *rest = lines(4, size=2 * MEMORY_LIMIT)
    queue.offer(first)
    assert not queue.is_delivered
    for line in rest:
        queue.offer(line)
    assert queue.catch_up_to == rest[-1].position
    assert queue.next_chunk() == first.data
    queue.advance(len(first.data))
    queue.catch_up(rest)
    assert (queue.catch_up_to, queue.next_chunk()) == (rest[-1].position, rest[0].data), "there is room for one"


def test_catch_up_ends_after_the_last_skipped_line_even_if_it_was_removed() -> None:
    queue = LineQueue()
    all_lines = lines(9)
    queue.skip(all_lines[3])  # of one time with the fourth and fifth
    queue.catch_up([*all_lines[:2], all_lines[6]])
    assert queue.catch_up_to is None
    assert write_all(queue) == b"".join(line.data for line in all_lines[:2])


def test_evict_keeps_only_a_partly_written_line() -> None:
    queue = LineQueue()
    all_lines = lines(6)
    for line in all_lines:
        queue.offer(line)
    queue.advance(15)
    queue.evict()
    assert queue.catch_up_to == all_lines[5].position
    assert write_all(queue) == all_lines[1].data[5:]
    assert queue.last_cursor == "c1"
    queue.catch_up(all_lines[2:])
    assert write_all(queue) == b"".join(line.data for line in all_lines[2:])


def test_removed_lines_are_counted() -> None:
    queue = LineQueue()
    all_lines = lines(9)
    queue.offer(all_lines[0])
    for line in all_lines[1:8]:
        queue.skip(line)
    queue.catch_up(all_lines[4:])
    assert queue.removed == 3
    assert b" removed 3 lines of this task's stdout before delivery" in removed_notice(3, Stream.STDOUT)
    assert write_all(queue) == b"".join(line.data for line in (all_lines[0], *all_lines[4:8]))


def test_a_notice_is_in_the_place_of_dropped_lines_and_counted_once_it_is_written() -> None:
    journal, queue = Journal(), LineQueue()
    for line in (journal.write("before\n"), journal.write("", dropped=1), journal.write("after\n")):
        queue.offer(line)
    assert queue.dropped == 0
    assert write_all(queue) == (
        b"before\nsolo5-relay: journald dropped 1 line of this task here (rate limit exceeded)\nafter\n"
    )
    assert queue.dropped == 1


def test_removed_lines_of_a_restored_queue_are_not_counted() -> None:
    all_lines = lines(9)
    queue = LineQueue(catch_up_to=all_lines[5].position)
    queue.skip(all_lines[6])
    queue.catch_up(all_lines[3:])
    assert queue.removed == 0


def test_a_notice_is_a_chunk_of_its_own_between_lines_and_does_not_move_the_cursor() -> None:
    queue = LineQueue()
    first, second = lines(2)
    queue.offer(first)
    queue.advance(3)
    queue.notice += b"a notice\n"
    chunks = []
    while queue.next_chunk():
        chunks.append((queue.position.cursor, queue.next_chunk()))
        queue.advance(len(chunks[-1][1]))
        if len(chunks) == 1:
            queue.offer(second)
    assert chunks == [("", first.data[3:]), ("c0", b"a notice\n"), ("c0", second.data)]
    assert queue.position == StreamPosition(cursor="c1")


@given(st.lists(st.sampled_from(["line", "write", "part", "catch up", "evict", "notice"]), max_size=120))
def test_after_any_steps_each_line_is_written_once_and_in_order(steps: list[str]) -> None:
    journal, queue, written, notices = Journal(), LineQueue(), bytearray(), 0
    room, module.MEMORY_LIMIT = module.MEMORY_LIMIT, 5 * (LINE_OVERHEAD + 10)
    try:
        for step in [*steps, *["catch up", "write"] * 80]:
            if step == "line":
                queue.offer(journal.write(f"line {len(journal.lines):04}\n"))
            elif step == "catch up" and queue.can_catch_up:
                after = int(queue.last_cursor[1:]) + 1 if queue.last_cursor else 0
                queue.catch_up(journal.lines[after:])
            elif step == "evict":
                queue.evict()
            elif step == "notice":
                queue.notice += NOTICE
                notices += 1
            elif step in ("write", "part"):
                chunk = queue.next_chunk()[: 7 if step == "part" else None]
                written += chunk
                queue.advance(len(chunk))
    finally:
        module.MEMORY_LIMIT = room
    assert bytes(written).replace(NOTICE, b"") == b"".join(line.data for line in journal.lines)
    assert written.count(NOTICE) == notices, "also of one that no reader was there for"
    assert queue.is_delivered
    assert queue.removed == 0
