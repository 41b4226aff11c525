"""Calls that would hold up an event loop."""

import threading

import pytest

from solo5_systemd.base.event_loop import is_event_loop, off_the_loop


async def test_with_an_event_loop_a_call_is_in_another_thread() -> None:
    assert is_event_loop()
    assert await off_the_loop(threading.get_ident) != threading.get_ident()
    assert not await off_the_loop(is_event_loop)


def test_without_one_it_is_in_this_thread() -> None:
    with pytest.raises(StopIteration) as done:
        off_the_loop(lambda: (threading.get_ident(), is_event_loop())).send(None)
    assert done.value.value == (threading.get_ident(), False)
