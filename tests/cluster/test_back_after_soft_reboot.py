"""A declared task survives `systemctl soft-reboot`: its guest, its connections, its locks and its console."""

import json
import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest
from tests.cluster.machines import Peer
from tests.machine.conftest import GUESTS, eventually

_RUNNER = "/run/systemd/system/boot-runner.service.d"
_SURVIVING = """[Unit]
SurviveFinalKillSignal=yes
IgnoreOnIsolate=yes
DefaultDependencies=no
FailureAction=none
"""
_FILE = """[Unit]
SurviveFinalKillSignal=%s
[Unikernel]
Image=%s/%s.spt
Memory=64M
%s
[Install]
WantedBy=multi-user.target
"""
_NAMES = ("stays", "goes", "disk")
_DORMANT = "waits"


@pytest.fixture
def peer() -> Iterator[Peer]:
    """A machine whose runner, the only way into it, survives as well; it is booted anew in the end."""
    subject = Peer("client1")
    subject.ok("mkdir", "-p", _RUNNER)
    subject.write(f"{_RUNNER}/survive.conf", _SURVIVING)
    try:
        yield subject
    finally:
        for name in (*_NAMES, _DORMANT):
            subject.sh("systemctl", "disable", "--now", name)
            subject.sh("solo5ctl", "rm", "--force", name)
        subject.sh("sh", "-c", "rm -rf /etc/solo5/*.unikernel /var/lib/solo5/declared")
        subject.sh("solo5ctl", "disk", "rm", "survivor")
        subject.kill()
        subject.boot()


def soft_reboots(peer: Peer) -> int:
    """Return how many there were; -1 while PID 1 cannot be reached."""
    shown = peer.sh("systemctl", "show", "--property=SoftRebootsCount", "--value").stdout.strip()
    return int(shown) if shown else -1


def invocation(peer: Peer, name: str) -> str:
    return peer.ok("systemctl", "show", "--property=InvocationID,MainPID", f"{name}.service")


def test_a_guest_that_survives_keeps_connection_lock_and_console(peer: Peer) -> None:
    net = "Publish=%d:7\nArgument={mirage}\nArgument=--count=50"
    peer.write("/etc/solo5/stays.unikernel", _FILE % ("yes", GUESTS, "net", net % 9101))
    peer.write("/etc/solo5/goes.unikernel", _FILE % ("no", GUESTS, "net", net % 9102))
    peer.write(
        "/etc/solo5/disk.unikernel",
        _FILE % ("yes", GUESTS, "disk", "Argument=stay\nBlock=storage=disk:survivor,create,size=1M"),
    )
    peer.ok("systemctl", "daemon-reload")
    peer.ok("systemctl", "enable", "--now", *_NAMES)
    before = {name: invocation(peer, name) for name in _NAMES}
    with socket.create_connection((peer.name, 9101), 10) as connection:
        connection.settimeout(30)
        connection.sendall(b"before")
        assert connection.recv(100) == b"before"
        peer.sh("systemctl", "soft-reboot", "--no-block")
        eventually(lambda: soft_reboots(peer) == 1, "it has rebooted")
        connection.sendall(b"after")
        assert connection.recv(100) == b"after"
    for name in ("stays", "disk"):
        assert invocation(peer, name) == before[name]
    eventually(lambda: peer.state("goes") == "active", "the other is started anew")
    assert invocation(peer, "goes") != before["goes"]
    second = peer.sh("solo5ctl", "run", "--rm", "--block", "storage=disk:survivor", f"{GUESTS}/disk.spt")
    assert "is in use by another task" in second.stderr
    lines = len(_console(peer))
    eventually(lambda: len(_console(peer)) > lines, "its console goes on")
    peer.ok("systemctl", "restart", "stays")
    eventually(lambda: _answers(peer.name, 9101), "it is restarted")
    assert json.loads(peer.ok("solo5ctl", "inspect", "--json", "stays"))[0]["phase"] == "running"


def test_a_dormant_task_waits_as_before_and_is_not_started(peer: Peer) -> None:
    idle = "Publish=9104:7\nArgument={mirage}\nIdleSec=5s\nIdleAction=stop"
    peer.write(f"/etc/solo5/{_DORMANT}.unikernel", _FILE % ("no", GUESTS, "net", idle))
    peer.ok("systemctl", "daemon-reload")
    peer.ok("systemctl", "enable", "--now", _DORMANT)
    eventually(peer.dormant, "it waits")
    before, run = peer.dormant(), invocation(peer, _DORMANT)
    peer.sh("systemctl", "soft-reboot", "--no-block")
    eventually(lambda: soft_reboots(peer) == 1, "it has rebooted")
    eventually(lambda: peer.state("solo5-networkd") == peer.state(f"{_DORMANT}.socket") == "active", "it is served")
    eventually(lambda: peer.dormant() == before, "it waits as before")
    assert invocation(peer, _DORMANT) in (run, "InvocationID=\nMainPID=0\n")
    assert _answers(peer.name, 9104)
    assert peer.state(_DORMANT) == "active"


def _console(peer: Peer) -> list[str]:
    return peer.ok("journalctl", "--quiet", "--output=cat", "--unit=stays.service", "--grep=^count").splitlines()


def _answers(host: str, port: int) -> bool:
    with suppress(OSError), socket.create_connection((host, port), 2) as connection:
        connection.settimeout(2)
        connection.sendall(b"there?")
        return connection.recv(100) == b"there?"
    return False
