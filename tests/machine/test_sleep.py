"""Tasks that sleep without packets: real guests, PID 1's own signals, and what systemd's tools do with a sleeper."""

import time
from pathlib import Path

import pytest
from tests.machine.conftest import GUESTS, Machine, Outside, Runner, eventually, inspect, ok, sh, udp
from tests.machine.declared import Declarations
from tests.machine.test_network import GATEWAY, IPV4, address, web


def process_state(name: str) -> str:
    """Return the state of a task's tender: `T` is stopped (proc_pid_stat(5))."""
    return Path(f"/proc/{inspect(name)['pid']}/stat").read_text().rpartition(")")[2].split()[0]


def asleep(name: str) -> bool:
    return "asleep_since" in inspect(name)


def row(name: str) -> str:
    return next(line for line in ok("solo5ctl", "ps").splitlines() if line.startswith(name))


@pytest.mark.parametrize("target", ["hvt", "spt"])
def test_a_guest_sleeps_and_the_first_request_wakes_it(run: Runner, outside: Outside, target: str) -> None:
    task = web(run, target=target, options=("-p", "8080:80", "--idle", "5s"))
    eventually(lambda: asleep(task), "it falls asleep")
    assert process_state(task) == "T"
    assert " Asleep " in row(task)
    assert inspect(task)["phase"] == "running"
    begun = time.monotonic()
    assert outside.tcp(outside.here, 8080)
    assert time.monotonic() - begun < 0.9, "without a retransmission"
    assert process_state(task) != "T"
    eventually(lambda: not asleep(task), "its record follows")
    assert " Up " in row(task)
    log = ok("journalctl", "--output=cat", f"OBJECT_SYSTEMD_UNIT={inspect(task)['unit']}")
    assert f"task {task} sleeps until its next packet" in log
    assert f"TCP {outside.there}:" in log


def test_by_hand(run: Runner) -> None:
    task = web(run)
    assert ok("solo5ctl", "sleep", task) == f"{task}\n"
    ok("solo5ctl", "sleep", task)
    assert (asleep(task), process_state(task)) == (True, "T")
    assert ok("solo5ctl", "wake", task) == f"{task}\n"
    ok("solo5ctl", "wake", task)
    assert (asleep(task), process_state(task) == "T") == (False, False)


@pytest.mark.parametrize(
    "end",
    [("solo5ctl", "stop"), ("solo5ctl", "stop", "--signal", "INT"), ("solo5ctl", "kill", "--signal", "TERM")],
    ids=" ".join,
)
def test_a_task_that_sleeps_is_stopped_at_once(run: Runner, end: tuple[str, ...]) -> None:
    task = web(run)
    ok("solo5ctl", "sleep", task)
    begun = time.monotonic()
    ok(*end, task)
    ok("solo5ctl", "wait", task)
    assert time.monotonic() - begun < 9, "before SIGKILL"
    assert inspect(task)["outcome"]["signal"] == (2 if "INT" in end else 15)


def test_a_task_that_sleeps_is_awake_after_a_restart(run: Runner) -> None:
    task = web(run)
    ok("solo5ctl", "sleep", task)
    ok("systemctl", "restart", inspect(task)["unit"])
    assert not asleep(task)
    assert "elements" not in ok("nft", "list", "set", "bridge", "solo5", "asleep")
    eventually(lambda: sh("ping", "-c1", "-W1", address(task)).returncode == 0, "it answers")
    ok("solo5ctl", "sleep", task)
    assert udp(address(task), 7, "once more") == "once more"


def test_only_root_puts_tasks_to_sleep_and_wakes_them(run: Runner) -> None:
    task = web(run)
    for method in ("Sleep", "Wake"):
        call = ("busctl", "call", "org.solo5.Network1", "/org/solo5/Network1", "org.solo5.Network1", method, "s", task)
        refused = sh("setpriv", "--reuid=nobody", "--clear-groups", *call)
        assert (refused.returncode != 0, "denied" in refused.stderr) == (True, True), refused.stderr
    assert process_state(task) != "T"


def test_a_declared_task_sleeps_through_a_daemon_reload(declare: Declarations) -> None:
    unit = declare("resting", f"Argument={IPV4}\nArgument={GATEWAY}\nIdleSec=5s")
    ok("systemctl", "start", unit)
    eventually(lambda: asleep("resting"), "it falls asleep")
    ok("systemctl", "daemon-reload")
    assert asleep("resting")
    assert udp(address("resting"), 7, "declared") == "declared"
    eventually(lambda: asleep("resting"), "it falls asleep again")
    ok("systemctl", "stop", unit)


def test_an_update_that_fails_leaves_a_guest_that_answers(declare: Declarations) -> None:
    """The end of the guest beside it has the task's network attached again: its record was that of one awake."""
    lines = f"Argument={IPV4}\nArgument={GATEWAY}\nPublish=7007:7/udp"
    unit = declare("resting", lines)
    ok("systemctl", "start", unit)
    ok("solo5ctl", "sleep", "resting")
    words = ("--ready=console:^never$", "--timeout=1s", "--watch=0", "--drain=1s")
    assert "was not ready within 1 s" in sh("solo5ctl", "update", "resting", str(GUESTS / "net.spt"), *words).stderr
    assert asleep("resting") == (process_state("resting") == "T")
    assert udp("127.0.0.1", 7007, "still there") == "still there"
    ok("systemctl", "stop", unit)


def test_what_a_sleeper_has_is_no_leftover(run: Runner) -> None:
    task = web(run)
    ok("solo5ctl", "sleep", task)
    assert "leftover" not in ok("solo5ctl", "gc", "--dry-run")
    assert asleep(task)


def test_what_only_looks_wakes_nobody(run: Runner) -> None:
    task = web(run, options=("--idle", "5s"))
    ok("solo5ctl", "sleep", task)
    for verb in (
        ["ps", "--all"],
        ["inspect", task],
        ["stats", "--no-stream"],
        ["metrics"],
        ["logs", task],
        ["network"],
    ):
        ok("solo5ctl", *verb)
    ok("systemctl", "status", inspect(task)["unit"])
    assert asleep(task)


def test_a_killed_sleeper_is_over_at_once(run: Runner) -> None:
    task = web(run)
    ok("solo5ctl", "sleep", task)
    ok("solo5ctl", "kill", "--signal=KILL", task)
    eventually(lambda: inspect(task)["phase"] == "ended", "it is over")
    assert inspect(task)["outcome"]["ending"] == "killed"


def test_solo5_networkd_killed_and_stopped(machine: Machine, run: Runner, outside: Outside) -> None:
    machine.expect("Main process exited, code=killed, status=9/KILL")
    machine.expect("Failed with result 'signal'")
    task = web(run, options=("-p", "8080:80"))
    ok("solo5ctl", "sleep", task)
    ok("systemctl", "kill", "--signal=KILL", "solo5-networkd")
    assert outside.tcp(outside.here, 8080)
    eventually(lambda: not asleep(task), "it is awake")
    ok("solo5ctl", "sleep", task)
    ok("systemctl", "stop", "solo5-networkd")
    assert process_state(task) != "T"
    assert outside.tcp(outside.here, 8080)


def test_what_cannot_sleep_is_refused(run: Runner) -> None:
    refused = run.fail("--idle=1min", str(GUESTS / "hello.spt"))
    assert "is to sleep, and the image has no NIC" in refused.stderr
    assert (
        "'4s' is out of range: expected 5 seconds to 365 days" in run.fail("--idle=4s", str(GUESTS / "net.spt")).stderr
    )
    task = run("sleeper.spt")
    assert "has no NIC on a network of this host" in sh("solo5ctl", "sleep", task).stderr


def test_idle_time_is_shown_and_exported(run: Runner) -> None:
    task = web(run, options=("--idle", "2min"))
    assert "IdleSec=120" in ok("solo5ctl", "export", task)
    assert inspect(task)["idle_s"] == 120
    assert "after 120 s without a packet" in ok("solo5ctl", "inspect", task)
    eventually(lambda: "; its last packet was seen" in ok("solo5ctl", "inspect", task), "it is looked at")
