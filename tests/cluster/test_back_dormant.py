"""Dormant tasks after a loss of power: all wait, none is started, and the first packet starts its own."""

import json
from collections.abc import Iterator

import pytest
from tests.cluster.agents import CLIENTS
from tests.cluster.machines import Peer
from tests.cluster.traffic import get
from tests.machine.conftest import GUESTS, eventually

NAMES = ("one", "two", "changed")
PORT = 9200
_DECLARE = """
printf '[Unikernel]\\nImage=%s\\nPublish=%d:80\\nArgument={mirage}\\nIdleSec=5s\\nIdleAction=stop\\n%s\\n' \
    "$2" "$3" '[Install]
WantedBy=multi-user.target' >"/etc/solo5/$1.unikernel"
"""


def declare(peer: Peer, name: str, port: int) -> None:
    peer.ok("sh", "-euc", _DECLARE, "sh", name, str(GUESTS / "net.spt"), str(port))


@pytest.fixture
def peer() -> Iterator[Peer]:
    subject = CLIENTS[0]
    for number, name in enumerate(NAMES):
        declare(subject, name, PORT + number)
    subject.ok("systemctl", "daemon-reload")
    subject.ok("systemctl", "enable", "--now", *NAMES)
    yield subject
    subject.sh("systemctl", "disable", *NAMES)
    subject.sh("solo5ctl", "rm", "--force", *NAMES)
    for name in NAMES:
        files = (f"/var/lib/solo5/{directory}/{name}.json" for directory in ("declared", "waiting"))
        subject.sh("rm", "-f", f"/etc/solo5/{name}.unikernel", *files)
    subject.sh("systemctl", "daemon-reload")


def dormant(peer: Peer) -> dict[str, object]:
    """The NICs of the tasks that wait."""
    listed = json.loads(peer.ok("solo5ctl", "ps", "--json"))
    return {each["name"]: each["nics"] for each in listed if each["phase"] == "dormant"}


def test_after_a_loss_of_power_tasks_wait_as_before_and_none_is_started(peer: Peer) -> None:
    eventually(lambda: len(dormant(peer)) == len(NAMES), "all wait")
    before = dormant(peer)
    declare(peer, "changed", PORT + 9)
    peer.kill()
    peer.boot()
    eventually(lambda: peer.sh("systemctl", "is-active", "changed").stdout == "active\n", "a changed one starts, once")
    eventually(lambda: len(dormant(peer)) == len(NAMES), "all wait")
    assert dormant(peer) == before
    started = peer.ok("journalctl", "--boot", "--quiet", "--output=cat", "--unit=one", "--unit=two", "--unit=changed")
    assert [name for name in NAMES if f"Started {name}.service" in started] == ["changed"]
    assert get((peer.name, PORT), 10)
    assert sorted(dormant(peer)) == ["changed", "two"]
    assert get((peer.name, PORT + 9), 10)
    with pytest.raises(OSError):
        get((peer.name, PORT + 2), 2)
