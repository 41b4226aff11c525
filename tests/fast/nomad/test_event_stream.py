"""The stream of task events: buffered without a reader, for the latest reader, bounded."""

from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fast.nomad.values import ALLOCATION, TASK_ID, task_config
from tests.support.fakes.background import Background, yields
from tests.support.fakes.clock import passed, taken

from solo5_systemd.nomad.event_messages import TaskEvent
from solo5_systemd.nomad.event_throttle import BURST, REFILL_INTERVAL_S, Throttle
from solo5_systemd.nomad.events import BUFFER_EVENTS, DELIVERY_TIMEOUT_S, SETTLE_TIMEOUT_S, EventStream
from solo5_systemd.nomad.proto import driver_pb2 as wire

TASK = task_config()


async def test_an_event_has_its_task_and_its_time() -> None:
    events = EventStream()
    events.publish(TASK, TaskEvent(message="Frozen", annotations={"a": "b"}))
    event = await anext(events.stream())
    assert (event.task_id, event.alloc_id, event.task_name) == (TASK_ID, ALLOCATION, "web")
    assert (event.message, dict(event.annotations)) == ("Frozen", {"a": "b"})
    assert event.timestamp.seconds > 1_700_000_000


async def test_events_are_kept_for_a_listener_to_come_and_then_arrive_as_they_happen() -> None:
    events = EventStream()
    for text in "ab":
        events.publish(TASK, TaskEvent(message=text))
    stream = events.stream()
    assert [(await anext(stream)).message for _ in "ab"] == ["a", "b"]
    async with Background(_next(stream)) as waiting:
        assert not waiting.done()
        events.publish(TASK, TaskEvent(message="c"))
        assert await waiting == "c"


async def test_no_more_are_kept_than_are_worth_it_and_those_the_latest() -> None:
    events = EventStream()
    for number in range(BUFFER_EVENTS + 2):
        events.publish(TASK, TaskEvent(message=str(number)))
    stream = events.stream()
    assert [(await anext(stream)).message for _ in range(BUFFER_EVENTS)] == [
        str(number) for number in range(2, BUFFER_EVENTS + 2)
    ]


async def test_a_later_listener_takes_over_and_the_earlier_one_hears_no_end() -> None:
    events = EventStream()
    first, second = events.stream(), events.stream()
    async with Background(_next(first)) as earlier, Background(_next(second)) as later:
        events.publish(TASK, TaskEvent(message="a"))
        assert await later == "a"
        events.publish(TASK, TaskEvent(message="b"))
        await yields()
        assert not earlier.done()
        assert (await anext(second)).message == "b"


@pytest.mark.leaps  # else a stream that lasts as long as a machine stands still has outlived it
@pytest.mark.parametrize("seconds, first", [(0, "a"), (2 * SETTLE_TIMEOUT_S, "b")])
async def test_what_was_sent_just_before_the_stream_broke_is_reported_again(seconds: float, first: str) -> None:
    events = EventStream()
    events.publish(TASK, TaskEvent(message="a"))
    async with Background(_all(events.stream())):
        await passed(seconds)
    events.publish(TASK, TaskEvent(message="b"))
    assert (await anext(events.stream())).message == first


async def test_the_last_of_a_task_waits_until_its_listener_has_it() -> None:
    events = EventStream()
    stream = events.stream()
    async with Background(_next(stream)) as first, Background(events.publish_last(TASK, TaskEvent(message="a"))) as end:
        await first
        assert not end.done(), "it is on its way"
        async with Background(_next(stream)):
            await end


async def test_the_last_of_a_task_waits_for_no_listener_that_is_not_there() -> None:
    events = EventStream()
    await events.publish_last(TASK, TaskEvent(message="a"))
    broken = events.stream()
    assert (await anext(broken)).message == "a"
    await broken.aclose()
    await events.publish_last(TASK, TaskEvent(message="b"))
    stream = events.stream()
    assert [(await anext(stream)).message for _ in "ab"] == ["a", "b"]


@pytest.mark.leaps
async def test_the_last_of_a_task_does_not_wait_for_ever() -> None:
    events = EventStream()
    events.publish(TASK, TaskEvent(message="a"))
    stream = events.stream()
    await anext(stream)
    assert await taken(events.publish_last(TASK, TaskEvent(message="b"))) == pytest.approx(DELIVERY_TIMEOUT_S)


async def _all(stream: AsyncIterator[wire.DriverTaskEvent]) -> None:
    async for _ in stream:
        pass


async def _next(stream: AsyncIterator[wire.DriverTaskEvent]) -> str:
    return (await anext(stream)).message


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
