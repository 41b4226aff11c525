"""UDP flows from before an attach; tests/contract/test_network_ports.py shows which ones the kernel loses."""

import asyncio
import logging
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from tests.fast.network.test_nft_rules import RESERVATION

from solo5_systemd.network.model import LeaseRecord, LeaseState
from solo5_systemd.networkd import namespaces

A = RESERVATION.task
RECORD = LeaseRecord(reservation=RESERVATION, state=LeaseState.ATTACHED, expires=0)


class Writer:
    """One call at a time, in a thread."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def run(self, function: Callable[..., object], *arguments: object) -> object:
        async with self._lock:
            return await asyncio.to_thread(function, *arguments)


def core() -> Any:
    of_task = SimpleNamespace(udp_ports=lambda task: {53: ()}, within=None)
    state = SimpleNamespace(record=lambda task: RECORD, at=lambda task, do: do(of_task))
    return SimpleNamespace(state=state, writer=Writer())


async def test_a_table_that_a_flood_has_filled_keeps_no_other_call_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, over = threading.Event(), threading.Event()

    def slowly(ports: object) -> None:
        begun.set()
        assert over.wait(10)

    monkeypatch.setattr(namespaces, "delete_udp_flows", slowly)
    service = core()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(namespaces.delete_earlier_flows(service, A))
        assert await asyncio.to_thread(begun.wait, 10)
        assert await asyncio.wait_for(service.writer.run(lambda: "another task's call"), 5) == "another task's call"
        over.set()


async def test_flows_that_cannot_be_deleted_fail_no_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(ports: object) -> None:
        raise OSError(105, "No buffer space available")

    monkeypatch.setattr(namespaces, "delete_udp_flows", refused)
    with caplog.at_level(logging.WARNING):
        await namespaces.delete_earlier_flows(core(), A)
    assert "deleting conntrack entries of the ports of task a failed: [Errno 105] No buffer" in caplog.text
