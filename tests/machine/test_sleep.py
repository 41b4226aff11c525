"""Tasks that sleep, with their signals from PID 1."""

import time
from pathlib import Path

import pytest
from tests.machine.conftest import Runner, eventually, inspect, ok, sh
from tests.machine.test_network import address, web


def is_stopped(task: str) -> bool:
    """Return whether the tender is stopped (proc_pid_stat(5))."""
    return Path(f"/proc/{inspect(task)['pid']}/stat").read_text().rpartition(") ")[2].startswith("T")


def test_a_task_without_packets_falls_asleep_and_answers_the_first_one(run: Runner) -> None:
    task = web(run, target="spt", options=("--idle", "5"))
    eventually(lambda: is_stopped(task), "it falls asleep")
    assert "  Asleep " in ok("solo5ctl", "ps")
    assert "asleep_since" in inspect(task)
    ok("ping", "-c", "1", "-W", "1", address(task))
    assert not is_stopped(task)
    eventually(lambda: "asleep_since" not in inspect(task), "its record is that of a task that is awake")
    journal = ok("journalctl", "--unit", f"solo5-task-{task}", "--output", "cat")
    assert f"task {task} sleeps until its next packet" in journal
    assert f"for {address(task)}\n" in journal or f"to {address(task)}\n" in journal


@pytest.mark.parametrize(
    "end",
    [("solo5ctl", "stop"), ("solo5ctl", "stop", "--signal", "INT"), ("solo5ctl", "kill", "--signal", "TERM")],
    ids=" ".join,
)
def test_a_task_that_sleeps_is_stopped_at_once(run: Runner, end: tuple[str, ...]) -> None:
    task = web(run)
    ok("solo5ctl", "sleep", task)
    assert is_stopped(task)
    begun = time.monotonic()
    ok(*end, task)
    ok("solo5ctl", "wait", task)
    assert time.monotonic() - begun < 9, "before SIGKILL"
    assert inspect(task)["outcome"]["signal"] == (2 if "INT" in end else 15)


def test_a_task_that_sleeps_is_awake_after_a_restart(run: Runner) -> None:
    task = web(run)
    ok("solo5ctl", "sleep", task)
    ok("systemctl", "restart", f"solo5-task-{task}")
    eventually(lambda: sh("ping", "-c", "1", "-W", "1", address(task)).returncode == 0, "it answers")
    assert not is_stopped(task)
    assert "elements" not in ok("nft", "list", "set", "bridge", "solo5", "asleep")


def test_only_root_puts_tasks_to_sleep_and_wakes_them(run: Runner) -> None:
    task = web(run)
    for method in ("Sleep", "Wake"):
        call = ("busctl", "call", "org.solo5.Network1", "/org/solo5/Network1", "org.solo5.Network1", method, "s", task)
        refused = sh("setpriv", "--reuid=nobody", "--clear-groups", *call)
        assert (refused.returncode != 0, "denied" in refused.stderr) == (True, True), refused.stderr
    assert not is_stopped(task)
