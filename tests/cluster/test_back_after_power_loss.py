"""Declared tasks come back by themselves: a machine loses its power, and has all of them again as they were."""

import time
from collections.abc import Iterator

import pytest
from tests.cluster.agents import CLIENTS
from tests.cluster.machines import Peer, web
from tests.cluster.traffic import get
from tests.machine.conftest import PATIENCE, eventually

COUNT = 16
PORT = 9000


def tasks(count: int) -> dict[str, str]:
    """Return so many declarations by name."""
    return {f"t{number}": web(PORT + number, f"Argument=number={number}") for number in range(count)}


@pytest.fixture
def peer() -> Iterator[Peer]:
    subject = CLIENTS[0]
    with subject.declared(tasks(COUNT)):
        yield subject


def answering(peer: Peer) -> int:
    """The number of guests that answer at their ports, each with its own number."""
    return sum(_answers(peer, number) for number in range(COUNT))


def _answers(peer: Peer, number: int) -> bool:
    try:
        return f"number={number}" in get((peer.name, PORT + number), 2)
    except OSError:
        return False


def test_all_tasks_are_back_with_the_same_addresses(peer: Peer) -> None:
    names = tasks(COUNT)
    started = peer.sh("systemctl", "start", *names, seconds=2 * PATIENCE)
    assert started.returncode == 0, started.stderr + peer.ok("journalctl", "--boot", "--priority=err", "--no-pager")
    eventually(lambda: answering(peer) == COUNT, "all answer", 2 * PATIENCE)
    before, boot = peer.nics(*names), peer.boot_id()
    peer.kill()
    began = time.monotonic()
    peer.boot()
    eventually(lambda: answering(peer) == COUNT, "all answer again", 3 * PATIENCE)
    print(f"{COUNT} tasks answer {time.monotonic() - began:.1f} s after the power came back")
    assert peer.boot_id() != boot
    assert peer.nics(*names) == before
    assert peer.ok("systemctl", "is-system-running").strip() == "running"
