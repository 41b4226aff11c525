"""Declared tasks that wait without a process: their socket units, as systemd's tools show and use them."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.machine.conftest import GUESTS, Machine, Outside, eventually, ok, sh, systemctl, udp, unit_property
from tests.machine.declared import Declarations
from tests.machine.test_network import GATEWAY, IPV4

STOPS = f"Argument={IPV4}\nArgument={GATEWAY}\nPublish=8080:80\nPublish=7007:7/udp\nIdleSec=5s\nIdleAction=stop"
INSTALL = "[Install]\nWantedBy=multi-user.target"


def row(name: str) -> str:
    return next((line for line in ok("solo5ctl", "ps").splitlines() if line.startswith(f"{name} ")), "")


def is_dormant(name: str) -> bool:
    return " Dormant " in row(name)


@pytest.fixture
def web(declare: Declarations) -> Iterator[str]:
    """A task that has run, and waits."""
    declare("web", STOPS, rest=INSTALL)
    systemctl("enable", "web")
    systemctl("start", "web.socket")
    eventually(lambda: unit_property("web.service", "ActiveState") == "active", "it is started once")
    eventually(lambda: is_dormant("web"), "it waits")
    yield "web"
    systemctl("disable", "web")
    systemctl("stop", "web.socket", "web.service")
    eventually(lambda: not is_dormant("web"), "its network is released")


def test_nothing_runs_and_the_first_request_starts_it(web: str, outside: Outside) -> None:
    assert unit_property("web.service", "ActiveState") == "inactive"
    assert unit_property("web.service", "MainPID") == "0"
    assert not list(Path("/run/netns").glob("solo5-web")) or "s5-" not in ok("ip", "-o", "link")
    shown = sh("systemctl", "status", "web").stdout
    assert "TriggeredBy: ● web.socket" in shown
    before = ok("nstat", "-asz", "TcpRetransSegs")
    assert outside.tcp(outside.here, 8080)
    assert ok("nstat", "-asz", "TcpRetransSegs") == before
    assert " Up " in row("web")
    assert unit_property("web.service", "ActiveState") == "active"
    log = ok("journalctl", "--output=cat", "OBJECT_SYSTEMD_UNIT=web.service")
    assert "task web is started for its first packet: a packet for" in log
    eventually(lambda: is_dormant("web"), "it waits again")


@pytest.mark.parametrize("here", ["127.0.0.1", "192.0.2.1"])
def test_a_request_of_the_host_starts_it(web: str, outside: Outside, here: str) -> None:
    assert udp(here, 7007, "from here") == "from here"


def test_a_stop_takes_it_out_of_waiting_and_a_start_starts_it_now(web: str) -> None:
    systemctl("stop", "web")
    assert unit_property("web.socket", "ActiveState") == "inactive"
    eventually(lambda: not is_dormant("web"), "its network is released")
    systemctl("start", "web")
    assert " Up " in row("web")
    assert unit_property("web.socket", "ActiveState") == "active"


def test_only_the_tasks_own_devices_are_open(web: str) -> None:
    systemctl("start", "web")
    links = [path.readlink() for path in Path(f"/proc/{unit_property('web.service', 'MainPID')}/fd").iterdir()]
    assert not [link for link in links if "waiting" in str(link)]


def test_it_waits_through_ends_of_the_service_and_a_new_pid_1(machine: Machine, web: str, outside: Outside) -> None:
    machine.expect("Main process exited, code=killed, status=9/KILL")
    machine.expect("Failed with result 'signal'")
    for command in (
        ("restart", "solo5-networkd"),
        ("stop", "solo5-networkd"),
        ("daemon-reexec",),
        ("kill", "--signal=KILL", "solo5-networkd"),
    ):
        systemctl(*command)
        assert outside.tcp(outside.here, 8080), command
        eventually(lambda: is_dormant("web"), "it waits again")


def test_a_task_that_cannot_start_is_failed_and_waits_no_longer(web: str, outside: Outside) -> None:
    image = Path("/etc/solo5/web.unikernel")
    image.write_text(image.read_text().replace("net.spt", "none.spt"))
    systemctl("daemon-reload")

    def has_failed() -> bool:
        assert not outside.tcp(outside.here, 8080)
        return unit_property("web.socket", "ActiveState") == "failed"

    eventually(has_failed, "as any socket unit")
    assert unit_property("web.socket", "Result") == "trigger-limit-hit"
    assert "image '/srv/guests/none.spt' does not exist" in sh("systemctl", "status", "web").stdout
    eventually(lambda: not is_dormant("web"), "its network is released")
    begun = time.monotonic()
    assert not outside.tcp(outside.here, 8080)
    assert time.monotonic() - begun < 5
    sh("systemctl", "reset-failed", "web.socket", "web.service")


@pytest.mark.parametrize("removed", [True, False], ids=["file removed", "IdleAction= removed"])
@pytest.mark.parametrize("dormant", [True, False], ids=["dormant", "running"])
def test_without_its_declaration_it_waits_no_longer(web: str, *, dormant: bool, removed: bool) -> None:
    """PID 1 keeps a socket unit without a file active, no job for the task stops it, and its FIFO would stay."""
    if not dormant:
        systemctl("start", "web")
    systemctl("disable", "web")
    path = Path("/etc/solo5/web.unikernel")
    path.unlink() if removed else path.write_text(path.read_text().replace("IdleAction=stop", ""))
    systemctl("daemon-reload")
    eventually(lambda: unit_property("web.socket", "ActiveState") == "inactive", "its socket unit is stopped")
    eventually(lambda: not is_dormant("web"), "its network is released")
    assert not Path("/run/solo5/waiting/web").exists()
    assert unit_property("web.service", "ActiveState") == ("inactive" if dormant else "active")
    sh("systemctl", "stop", "web")
    eventually(lambda: not Path("/run/solo5/network/tasks/web.json").exists(), "its network is released")
    path.write_text(f"[Unikernel]\nImage={GUESTS}/net.spt\n{STOPS}\n{INSTALL}\n")
    systemctl("daemon-reload")
    systemctl("start", "web")
    eventually(lambda: is_dormant("web"), "it waits again")


def test_what_a_dormant_task_has_is_no_leftover(web: str) -> None:
    assert "leftover" not in ok("solo5ctl", "gc", "--dry-run")
    assert is_dormant("web")


def test_the_guest_beside_it_during_an_update_does_not_wait(web: str) -> None:
    systemctl("start", "web")
    ok("solo5ctl", "update", "web", str(GUESTS / "net.spt"), "--watch=0", "--drain=1s")
    assert [path.name for path in Path("/var/lib/solo5/waiting").iterdir()] == ["web.json"]
