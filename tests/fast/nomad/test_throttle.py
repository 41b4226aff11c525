"""The throttle of recurring events: a burst, then one for each interval; held events are counted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solo5_systemd.nomad.event_messages import TaskEvent
from solo5_systemd.nomad.events import BURST, REFILL_INTERVAL_S, Throttle


def event(text: object) -> TaskEvent:
    return TaskEvent(message=str(text))


@pytest.mark.parametrize(("held", "text"), [(1, str(BURST)), (3, f"{BURST + 2} … and 2 earlier events")])
def test_a_few_pass_at_once_and_the_last_of_those_held_back_is_reported_with_their_number(held: int, text: str) -> None:
    throttle = Throttle(since=0)
    passed = [throttle.offer(event(number), 0) for number in range(BURST + held)]
    assert passed == [*map(event, range(BURST)), *[None] * held]
    assert throttle.due(0) == REFILL_INTERVAL_S
    assert throttle.release(REFILL_INTERVAL_S) == event(text)
    assert throttle.release(REFILL_INTERVAL_S) is None


def test_nothing_overtakes_what_is_held_back() -> None:
    throttle = Throttle(since=0)
    for number in range(BURST + 1):
        throttle.offer(event(number), 0)
    assert throttle.offer(event("later"), 10 * REFILL_INTERVAL_S) is None
    assert throttle.release(10 * REFILL_INTERVAL_S) == event("later … and 1 earlier events")


@given(st.lists(st.floats(0, 100), max_size=200))
def test_no_task_is_heard_more_often_than_its_period_allows(pauses: list[float]) -> None:
    throttle, now, published = Throttle(since=0), 0.0, 0
    for pause in pauses:
        now += pause
        published += throttle.offer(event(now), now) is not None
        if throttle.held and throttle.due(now) == 0:
            published += throttle.release(now) is not None
    assert published <= BURST + now / REFILL_INTERVAL_S + 1e-6
