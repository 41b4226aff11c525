"""Declared tasks that wait without a process: their socket units, as systemd's tools show and use them."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.machine.conftest import (
    GUESTS,
    Files,
    Machine,
    Outside,
    eventually,
    inspect,
    ok,
    row,
    sh,
    systemctl,
    udp,
    unit_property,
)
from tests.machine.declared import Declarations, status
from tests.machine.test_network import GATEWAY, IPV4

STOPS = f"Argument={IPV4}\nArgument={GATEWAY}\nPublish=8080:80\nPublish=7007:7/udp\nIdleSec=5s\nIdleAction=stop"
INSTALL = "[Install]\nWantedBy=multi-user.target"


def is_dormant(name: str) -> bool:
    return " Dormant " in row(name)


@pytest.fixture
def web(declare: Declarations) -> Iterator[str]:
    """A task that has run, and waits."""
    declare("web", STOPS, rest=INSTALL)
    systemctl("start", "web.socket")
    eventually(lambda: unit_property("web.service", "ActiveState") == "active", "it is started once")
    rests("stop")
    yield "web"
    systemctl("stop", "web.socket", "web.service")
    eventually(lambda: not is_dormant("web"), "its network is released")


def sent_again(outside: Outside) -> int:
    """Return how many requests for a connection the client has sent again."""
    return int(outside.ok("nstat", "-asz", "TcpExtTCPSynRetrans").split()[-2])


def test_nothing_runs_and_the_first_request_starts_it(web: str, outside: Outside) -> None:
    assert unit_property("web.service", "ActiveState") == "inactive"
    assert unit_property("web.service", "MainPID") == "0"
    assert not list(Path("/run/netns").glob("solo5-web")) or "s5-" not in ok("ip", "-o", "link")
    shown = sh("systemctl", "status", "web").stdout
    assert "TriggeredBy: ● web.socket" in shown
    before, begun = sent_again(outside), time.monotonic()
    assert outside.tcp(outside.here, 8080)
    assert sent_again(outside) - before <= int(time.monotonic() - begun), "one a second, while it is being started"
    assert " Up " in row("web")
    assert unit_property("web.service", "ActiveState") == "active"
    log = ok("journalctl", "--output=cat", "OBJECT_SYSTEMD_UNIT=web.service")
    assert "task web is started: a packet for" in log
    eventually(lambda: is_dormant("web"), "it waits again")
    for here in ("127.0.0.1", outside.here):
        assert udp(here, 7007, "from here") == "from here"
        rests("stop")


def test_a_stop_takes_it_out_of_waiting_and_a_start_starts_it_now(web: str) -> None:
    systemctl("stop", "web")
    assert unit_property("web.socket", "ActiveState") == "inactive"
    eventually(lambda: not is_dormant("web"), "its network is released")
    assert unit_property("web.service", "ExecMainExitTimestampMonotonic") != "0", "PID 1 keeps its outcome"
    systemctl("start", "web")
    assert " Up " in row("web")
    assert unit_property("web.socket", "ActiveState") == "active"
    links = [path.readlink() for path in Path(f"/proc/{unit_property('web.service', 'MainPID')}/fd").iterdir()]
    assert not [link for link in links if "waiting" in str(link)], "only its own devices are open"


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
        rests("stop")


LATER = "task web is not started for packets until later: it has ended by itself, or not started, 4 times in 30 s"


def test_a_task_that_crashes_or_cannot_start_is_put_off_and_started_once_it_can(
    machine: Machine, web: str, outside: Outside
) -> None:
    """Nor does a client that makes it crash again and again take it down for good."""
    machine.expect(LATER)
    declaration = Path("/etc/solo5/web.unikernel")
    good = declaration.read_text()
    for _ in range(2):
        eventually(lambda: outside.tcp(outside.here, 8080), "it is started")
        systemctl("kill", "--signal=SEGV", "web.service")
        eventually(lambda: is_dormant("web"), "it waits again")
    declaration.write_text(good.replace("net.spt", "none.spt"))
    systemctl("daemon-reload")

    def is_put_off() -> bool:
        assert outside.is_refused(outside.here, 8080), "its client learns of it"
        return LATER in status("web")

    eventually(is_put_off, "it is not started each time")
    assert "image '/srv/guests/none.spt' does not exist" in status("web")
    assert (unit_property("web.socket", "ActiveState"), is_dormant("web")) == ("active", True)
    declaration.write_text(good)
    systemctl("daemon-reload")
    eventually(lambda: outside.tcp(outside.here, 8080), "without a command")
    systemctl("stop", "web")
    systemctl("reset-failed", "web")
    record = Path("/run/solo5/network/tasks/web.json")
    eventually(lambda: not record.exists(), "its run is over for solo5-networkd, too")
    systemctl("start", "web.socket")
    eventually(lambda: is_dormant("web"), "it waits")
    systemctl("stop", "web")
    over = "task web is dormant no longer: its socket unit has ended"
    eventually(lambda: over in status("web"), "an operator is told")


def test_only_runs_that_end_by_themselves_count_for_the_limit_of_its_declaration(
    machine: Machine, declare: Declarations
) -> None:
    machine.expect("web.service: Failed with result|web.socket: Failed with result|Main process exited, code=dumped")
    declare("web", STOPS, rest="[Unit]\nStartLimitIntervalSec=1h\nStartLimitBurst=3")
    systemctl("start", "web")
    for _ in range(4):
        rests("stop")
        assert udp("127.0.0.1", 7007, "from here") == "from here"
    for _ in range(3):
        assert unit_property("web.socket", "ActiveState") == "active"
        eventually(lambda: " Up " in row("web"), "it is started")
        systemctl("kill", "--signal=SEGV", "web.service")
        eventually(lambda: is_dormant("web"), "it waits again")
        sh("solo5ctl", "wake", "web")
    eventually(lambda: unit_property("web.socket", "Result") == "service-start-limit-hit", "it has crashed three times")


def test_its_end_is_known_without_the_message_of_pid_1_which_is_lost_while_journald_restarts(web: str) -> None:
    systemctl("start", "web")
    ok("systemctl", "log-level", "notice")
    try:
        rests("stop")
    finally:
        ok("systemctl", "log-level", "info")
    eventually(lambda: "ended until its next packet" in ok("solo5ctl", "inspect", "web"), "it was idle")


def test_a_packet_for_a_refused_declaration_starts_nothing_and_one_for_the_mended_does(
    web: str, outside: Outside
) -> None:
    declaration = Path("/etc/solo5/web.unikernel")
    good = declaration.read_text()
    for text in (f"{good}Wrong=1\n", good):
        declaration.write_text(text)
        systemctl("daemon-reload")
    assert outside.tcp(outside.here, 8080), "it is not deaf"
    rests("stop")
    declaration.write_text(f"{good}Wrong=1\n")
    systemctl("daemon-reload")
    assert outside.is_refused(outside.here, 8080), "its client learns of it"
    assert unit_property("web.service", "MainPID") == "0", "no guest is started"
    assert "Wrong= is not a known setting" in status("web")
    assert (unit_property("web.socket", "ActiveState"), is_dormant("web")) == ("active", True)
    declaration.write_text(good)
    systemctl("daemon-reload")
    assert outside.tcp(outside.here, 8080)
    rests("stop")


BUS = {"restarted": ("restart", "dbus"), "killed": ("kill", "--signal=KILL", "dbus")}


@pytest.mark.parametrize("bus", BUS)
@pytest.mark.parametrize("rest", ["sleep", "stop"])
def test_a_packet_while_the_bus_restarts_is_answered(
    machine: Machine, declare: Declarations, outside: Outside, bus: str, rest: str
) -> None:
    machine.expect("lost the connection to the system bus|Main process exited|Failed with result|cannot be woken")
    declare("web", STOPS.replace("=stop", f"={rest}"), rest="[Unit]\nStartLimitIntervalSec=0")
    systemctl("start", "web")
    assert outside.tcp(outside.here, 8080), "else the host asks a sleeper for its MAC address, three times in 3 s"
    rests(rest)
    systemctl(*BUS[bus])
    assert outside.tcp(outside.here, 8080)
    rests(rest)
    ok("nft", "flush", "ruleset")
    assert outside.tcp(outside.here, 8080)
    systemctl("stop", "web")


def rests(action: str) -> None:
    """Have the task be dormant, or asleep."""
    eventually(lambda: sh("solo5ctl", "sleep", "web").returncode == 0, "solo5-networkd is there")
    eventually(lambda: f" {'Dormant' if action == 'stop' else 'Asleep'} " in row("web"), "it rests")


def test_what_only_looks_starts_nothing(web: str) -> None:
    run = unit_property("web.service", "InvocationID")
    for words in ("ps --all", "inspect web", "stats --no-stream web", "metrics", "logs web", "network", "sleep web"):
        ok("solo5ctl", *words.split())
    assert f"Image={GUESTS}/net.spt\n{STOPS}\n" in ok("solo5ctl", "export", "web")
    for verb, code in (("rollback", 127), ("freeze", 125)):  # no earlier image; it does not run
        refused = sh("solo5ctl", verb, "web")
        assert (refused.returncode, refused.stdout) == (code, ""), refused.stderr
    assert "orphan " not in ok("solo5ctl", "doctor")
    assert "network leftover" not in ok("solo5ctl", "gc", "--dry-run")
    systemctl("daemon-reload")
    assert (unit_property("web.service", "InvocationID"), is_dormant("web")) == (run, True)


def test_what_systemd_starts_it_for(web: str, outside: Outside, place: Files) -> None:
    units = {
        "early.timer": "[Timer]\nOnActiveSec=100ms\nAccuracySec=1ms\nUnit=web.service\n",
        "needs.service": "[Unit]\nRequires=web.service\nAfter=web.service\n[Service]\nExecStart=/bin/sleep 999\n",
    }
    for name, text in units.items():
        place(f"/run/systemd/system/{name}", text)
        systemctl("daemon-reload")
        systemctl("start", name)
        eventually(lambda: " Up " in row("web"), f"{name} starts it")
        rests("stop")
    assert unit_property("needs.service", "ActiveState") == "active", "the end for idleness is no stop"
    systemctl("stop", *units)
    systemctl("mask", "web")
    assert not outside.tcp(outside.here, 8080)
    eventually(lambda: unit_property("web.socket", "ActiveState") == "failed", "its socket unit says so")
    eventually(lambda: not is_dormant("web"), "its network is released")
    systemctl("unmask", "web")
    systemctl("restart", "web.socket")
    rests("stop")
    assert outside.tcp(outside.here, 8080)


@pytest.mark.parametrize("removed", [True, False], ids=["file removed", "IdleAction= removed"])
@pytest.mark.parametrize("dormant", [True, False], ids=["dormant", "running"])
def test_without_its_declaration_it_waits_no_longer(web: str, *, dormant: bool, removed: bool) -> None:
    """PID 1 keeps a socket unit without a file active, no job for the task stops it, and its FIFO would stay."""
    if not dormant:
        systemctl("start", "web")
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
    rests("stop")


def test_an_update_without_packets_outlasts_the_idle_time(web: str, outside: Outside) -> None:
    systemctl("start", "web")
    ok("solo5ctl", "update", "web", str(GUESTS / "net.spt"), "--watch=8s", "--drain=1s")
    assert [path.name for path in Path("/run/solo5/waiting").iterdir()] == ["web"], "the guest beside it does not wait"
    assert outside.tcp(outside.here, 8080)
    eventually(lambda: is_dormant("web"), "it waits again")


def test_an_update_and_a_rollback_start_it_first(web: str, outside: Outside, newer: str) -> None:
    earlier = str(GUESTS / "net.spt")
    for words, image, last in (
        (("update", "web", newer), newer, "task web is updated"),
        (("rollback", "web"), earlier, f"web: back to {earlier} (SHA-256 "),
    ):
        steps = ok("solo5ctl", *words, "--watch=0", "--drain=0").splitlines()
        assert steps[0].endswith(" s  task web, which was dormant, is started")
        assert last in steps[-1]
        assert inspect("web")["image"] == image
        assert outside.tcp(outside.here, 8080)
        rests("stop")


def test_a_verb_returns_once_it_runs_or_prints_why_it_does_not(
    machine: Machine, web: str, newer: str, outside: Outside
) -> None:
    machine.expect("solo5-update@web.service|Failed to start solo5-update@web.service|web.service did not start")
    declaration = Path("/etc/solo5/web.unikernel")
    good = declaration.read_text()
    for words in (["wake", "web"], ["update", "web", newer, "--watch=0"], ["rollback", "web", "--watch=0"]):
        declaration.write_text(good.replace(STOPS, f"{STOPS}\nBlock=data=/srv/none.img"))
        systemctl("daemon-reload")
        refused = sh("solo5ctl", *words)
        assert (refused.returncode, refused.stdout) == (125, ""), words
        sentence = "solo5ctl: web.service did not start: its preparation has failed, or was being stopped."
        assert refused.stderr.split() == [*sentence.split(), *"See: systemctl status web.service".split()]
        assert "data" in status("web"), status("web")
        eventually(lambda: is_dormant("web"), "it waits again")
        declaration.write_text(good)
        systemctl("daemon-reload")
        ok("solo5ctl", *words)
        assert unit_property("web.service", "ActiveState") == "active"
        assert outside.tcp(outside.here, 8080)
        rests("stop")
