"""How tasks end, and that each end is told from the others: the same words by ps, inspect and wait."""

import pytest

from .conftest import Machine, Runner, eventually, inspect, ok, says

ENDINGS = [
    ("hello.hvt", (), "exited", 0, None),
    ("hello.spt", (), "exited", 0, None),
    ("hello.hvt", ("exit=1",), "exited", 1, None),
    ("hello.spt", ("exit=1",), "exited", 1, None),
    ("hello.hvt", ("exit=300",), "exited", 44, None),
    ("aborter.hvt", (), "aborted", 255, None),
    ("aborter.spt", (), "aborted", 255, None),
    ("trapper.hvt", (), "trapped", 255, None),
    ("trapper.spt", (), "trapped", None, 4),
    ("trapper.spt", ("what=read",), "trapped", None, 11),
    ("trapper.spt", ("what=syscall",), "forbidden-system-call", None, 31),
]


@pytest.mark.parametrize(("guest", "arguments", "ending", "code", "signal"), ENDINGS)
def test_ending(
    run: Runner, guest: str, arguments: tuple[str, ...], ending: str, code: int | None, signal: int | None
) -> None:
    name = run(guest, *arguments)
    ok("solo5ctl", "wait", name)
    outcome = inspect(name)["outcome"]
    assert (outcome["ending"], outcome.get("exit_code"), outcome.get("signal")) == (ending, code, signal)


@pytest.mark.parametrize("target", ["hvt", "spt"])
def test_signal_from_somebody_else_is_told_from_a_stop(machine: Machine, run: Runner, target: str) -> None:
    name = run(f"sleeper.{target}")
    says(name, "sleeping")
    ok("kill", "-KILL", str(inspect(name)["pid"]))
    eventually(lambda: inspect(name)["phase"] == "ended", "ended")
    assert inspect(name)["outcome"]["ending"] == "killed"


def test_a_guests_words_are_not_taken_for_the_tenders(run: Runner) -> None:
    name = run("hello.hvt", "Exiting on signal 15", "exit=1")
    ok("solo5ctl", "wait", name)
    assert inspect(name)["outcome"]["ending"] == "exited"
