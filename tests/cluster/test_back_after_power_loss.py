"""Declared tasks come back by themselves: a machine loses its power, and has all of them again as they were."""

import json
import time
from collections.abc import Iterator

import pytest
from tests.cluster.agents import CLIENTS
from tests.cluster.machines import Peer
from tests.cluster.traffic import get
from tests.machine.conftest import GUESTS, PATIENCE, eventually

COUNT = 16
PORT = 9000
_WRITE = """
cd /etc/solo5
i=0
while [ $i -lt "$1" ]; do
    printf '[Unikernel]\\nImage=%s\\nMemory=24M\\nPublish=%d:80\\nArgument={mirage} number=%d\\n%s\\n' \
        "$2" $((9000 + i)) $i '[Install]
WantedBy=multi-user.target' >t$i.unikernel
    i=$((i + 1))
done
"""


def declare(peer: Peer, count: int) -> None:
    """Declare and enable so many tasks; none is started."""
    peer.ok("sh", "-euc", _WRITE, "sh", str(count), str(GUESTS / "net.spt"))
    peer.ok("systemctl", "daemon-reload")
    peer.ok("systemctl", "enable", *_names(count))


def remove(peer: Peer, count: int) -> None:
    """Remove them, with all that is kept of them."""
    names = _names(count)
    peer.sh("systemctl", "disable", *names)
    peer.sh("systemctl", "stop", *names, seconds=2 * PATIENCE)
    peer.sh("solo5ctl", "rm", "--force", *names, seconds=2 * PATIENCE)
    peer.sh("sh", "-c", "rm -rf /etc/solo5/t*.unikernel /var/lib/solo5/declared")
    peer.sh("systemctl", "daemon-reload")


def _names(count: int) -> list[str]:
    return [f"t{number}" for number in range(count)]


@pytest.fixture
def peer() -> Iterator[Peer]:
    subject = CLIENTS[0]
    try:
        declare(subject, COUNT)
        yield subject
    finally:
        remove(subject, COUNT)


def answering(peer: Peer) -> int:
    """The number of guests that answer at their ports, each with its own number."""
    return sum(_answers(peer, number) for number in range(COUNT))


def _answers(peer: Peer, number: int) -> bool:
    try:
        return f"number={number}" in get((peer.name, PORT + number), 2)
    except OSError:
        return False


def identities(peer: Peer, count: int = COUNT) -> dict[str, object]:
    """Addresses, MACs and taps by task."""
    shown = json.loads(peer.ok("solo5ctl", "inspect", "--json", *_names(count)))
    return {task["name"]: task["nics"] for task in shown}


def test_all_tasks_are_back_with_the_same_addresses(peer: Peer) -> None:
    started = peer.sh("systemctl", "start", *_names(COUNT), seconds=2 * PATIENCE)
    assert started.returncode == 0, started.stderr + peer.ok("journalctl", "--boot", "--priority=err", "--no-pager")
    eventually(lambda: answering(peer) == COUNT, "all answer", 2 * PATIENCE)
    before, boot = identities(peer), peer.boot_id()
    peer.kill()
    began = time.monotonic()
    peer.boot()
    eventually(lambda: answering(peer) == COUNT, "all answer again", 3 * PATIENCE)
    print(f"{COUNT} tasks answer {time.monotonic() - began:.1f} s after the power came back")
    assert peer.boot_id() != boot
    assert identities(peer) == before
    assert peer.ok("systemctl", "is-system-running").strip() == "running"
