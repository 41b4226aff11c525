"""A task is heard a few times at once, then once a period; what is held back is summed up, never forgotten."""

from hypothesis import given
from hypothesis import strategies as st

from solo5_systemd.nomad.events.messages import TaskEvent
from solo5_systemd.nomad.events.throttle import BURST, REFILL_INTERVAL_S, Throttle


def said(text: object) -> TaskEvent:
    return TaskEvent(message=str(text))


def test_a_few_pass_at_once_and_the_rest_is_held_back() -> None:
    throttle = Throttle(since=0)
    passed = [throttle.offer(said(number), 0) for number in range(BURST + 3)]
    assert passed == [*map(said, range(BURST)), None, None, None]
    assert throttle.due(0) == REFILL_INTERVAL_S


def test_what_was_held_back_is_told_by_its_last_and_their_number() -> None:
    throttle = Throttle(since=0)
    for number in range(BURST + 3):
        throttle.offer(said(number), 0)
    assert throttle.release(REFILL_INTERVAL_S) == said(f"{BURST + 2} … and 2 earlier events")
    assert throttle.release(REFILL_INTERVAL_S) is None


def test_one_alone_that_was_held_back_is_told_as_it_is() -> None:
    throttle = Throttle(since=0)
    for number in range(BURST + 1):
        throttle.offer(said(number), 0)
    assert throttle.release(REFILL_INTERVAL_S) == said(BURST)


def test_nothing_overtakes_what_is_held_back() -> None:
    throttle = Throttle(since=0)
    for number in range(BURST + 1):
        throttle.offer(said(number), 0)
    assert throttle.offer(said("later"), 10 * REFILL_INTERVAL_S) is None
    assert throttle.release(10 * REFILL_INTERVAL_S) == said("later … and 1 earlier events")


@given(st.lists(st.floats(0, 100), max_size=200))
def test_no_task_is_heard_more_often_than_its_period_allows(pauses: list[float]) -> None:
    throttle, now, heard = Throttle(since=0), 0.0, 0
    for pause in pauses:
        now += pause
        heard += throttle.offer(said(now), now) is not None
        if throttle.held and throttle.due(now) == 0:
            heard += throttle.release(now) is not None
    assert heard <= BURST + now / REFILL_INTERVAL_S + 1e-6
