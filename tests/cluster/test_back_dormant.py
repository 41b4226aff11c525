"""Dormant tasks after a loss of power: all wait, none is started, and the first packet starts its own."""

from collections.abc import Iterator

import pytest
from tests.cluster.agents import CLIENTS
from tests.cluster.machines import Peer, web
from tests.cluster.traffic import get
from tests.machine.conftest import eventually

NAMES = ("one", "two", "changed")
PORT = 9200
WAITS = ("IdleSec=5s", "IdleAction=stop")


@pytest.fixture
def peer() -> Iterator[Peer]:
    subject = CLIENTS[0]
    with subject.declared({name: web(PORT + number, *WAITS) for number, name in enumerate(NAMES)}):
        subject.ok("systemctl", "start", *NAMES)
        yield subject


def test_after_a_loss_of_power_tasks_wait_as_before_and_none_is_started(peer: Peer) -> None:
    eventually(lambda: len(peer.dormant()) == len(NAMES), "all wait")
    before = peer.dormant()
    peer.write("/etc/solo5/changed.unikernel", web(PORT + 9, *WAITS))
    peer.kill()
    peer.boot()
    eventually(lambda: peer.state("changed") == "active", "a changed one starts, once")
    eventually(lambda: len(peer.dormant()) == len(NAMES), "all wait")
    assert peer.dormant() == before
    started = peer.ok("journalctl", "--boot", "--quiet", "--output=cat", "--unit=one", "--unit=two", "--unit=changed")
    assert [name for name in NAMES if f"Started {name}.service" in started] == ["changed"]
    assert get((peer.name, PORT), 10)
    assert sorted(peer.dormant()) == ["changed", "two"]
    assert get((peer.name, PORT + 9), 10)
    with pytest.raises(OSError):
        get((peer.name, PORT + 2), 2)
