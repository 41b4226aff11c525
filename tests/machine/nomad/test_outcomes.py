"""Each outcome in Nomad: exit code, signal, OOM flag, message, and the event of the driver."""

from typing import Any

from tests.machine.conftest import eventually, ok, unit_property
from tests.machine.mishaps import end_main_thread, going_down
from tests.machine.nomad.agent import Agent
from tests.machine.nomad.jobs import Allocation, Jobs, ended, guest, hcl, running

Shown = tuple[str, int, int, str]
"""The outcome's name, exit code, signal, and words of the message."""

CHANGE = "a retry cannot help: image, arguments, devices or host have to change"
OF_THEMSELVES: dict[str, tuple[str, Shown]] = {
    "done": ("hello.hvt", ("exited", 0, 0, "")),
    "three": ("hello.spt exit=3", ("exited", 3, 0, "")),
    "usage": ("hello.hvt exit=64", ("exited", 64, 0, "retry cannot help: its arguments have to change")),
    "abort-hvt": ("aborter.hvt", ("aborted", 255, 0, "the guest aborted: Solo5: ABORT: aborter.c")),
    "abort-spt": ("aborter.spt", ("aborted", 255, 0, "the guest aborted: Solo5: ABORT: aborter.c")),
    "trap-hvt": ("trapper.hvt", ("trapped", 255, 0, "the guest trapped: Solo5: trap: type=#UD")),
    "trap-spt": ("trapper.spt", ("trapped", 132, 4, "the guest trapped (SIGILL)")),
    "call": ("trapper.spt what=syscall", ("forbidden-system-call", 159, 31, "a forbidden system call")),
    "heap": ("toucher.hvt mb=1 then=more", ("guest-out-of-memory", 2, 0, "exception Out_of_memory")),
    "room": ("aborter.spt how=memory", ("guest-out-of-memory", 255, 0, "its image alone fills its memory")),
    "text": ("trapper.hvt what=text", ("tender-failed", 1, 0, "the tender failed: KVM: ")),
}


def config(command: str, properties: str = "") -> str:
    return guest(*command.split(), more=properties)


def terminated(alloc: Allocation) -> dict[str, Any]:
    """Return Nomad's own event of the end."""
    found: list[dict[str, Any]] = [event for event in alloc.task()["Events"] if event["Type"] == "Terminated"]
    assert len(found) == 1, alloc.events()
    return found[0]


def check(alloc: Allocation, shown: Shown) -> None:
    """Check the outcome as shown to operators and to programs."""
    outcome, code, signal, words = shown
    event = terminated(alloc)
    details = event["Details"]
    assert (int(details["exit_code"]), int(details["signal"])) == (code, signal), alloc.status()
    assert details["oom_killed"] == "false", alloc.status()
    assert words in event["DisplayMessage"] if words else "Exit Message" not in event["DisplayMessage"], alloc.status()
    assert f"Exit Code: {code}" in alloc.status()
    eventually(lambda: announced(alloc) == [outcome], f"the event {outcome!r}, once")


def announced(alloc: Allocation) -> list[str]:
    return [event["Details"]["outcome"] for event in alloc.task()["Events"] if "outcome" in event["Details"]]


def test_guests_that_end_by_themselves(jobs: Jobs) -> None:
    submitted = {
        job: jobs.submit(hcl(job, config(command), kind="batch")) for job, (command, _) in OF_THEMSELVES.items()
    }
    for job in submitted:
        check(ended(job), OF_THEMSELVES[job][1])


def test_a_tender_that_refuses_and_a_limit_of_systemds(jobs: Jobs) -> None:
    refusal = 'properties {\n  LimitAS = "32M"\n}'
    limit = 'properties {\n  RuntimeMaxSec = "1s"\n}'
    jobs.submit(hcl("refused", config("sleeper.hvt", refusal), kind="batch", memory=96))
    jobs.submit(hcl("limited", config("sleeper.spt", limit), kind="batch"))
    check(ended("refused"), ("tender-refused", 1, 0, CHANGE))
    check(ended("limited"), ("timed-out", 143, 15, "ended by systemd: timeout"))


def test_tasks_that_another_program_ends(jobs: Jobs) -> None:
    """By the unit, by the process; a hung task, and one whose unit is removed before its outcome is read."""
    sleepers = ("stopped-hvt", "stopped-spt", "term-hvt", "term-spt", "killed-spt", "hung-hvt")
    for job in sleepers:
        jobs.submit(sleeper(job, job.rpartition("-")[2]))
    units = {job: asleep(job) for job in sleepers}
    ok("systemctl", "stop", units["stopped-hvt"], units["stopped-spt"])
    ok("kill", "-TERM", *(main(units[job]) for job in ("term-hvt", "term-spt")))
    ok("kill", "-KILL", main(units["killed-spt"]))
    end_main_thread(main(units["hung-hvt"]))
    expected: dict[str, Shown] = {
        "stopped-hvt": ("stopped", 143, 15, ""),
        "stopped-spt": ("stopped", 143, 15, ""),
        "term-hvt": ("killed", 143, 15, "killed by SIGTERM, which systemd did not send"),
        "term-spt": ("killed", 143, 15, "killed by SIGTERM, which systemd did not send"),
        "killed-spt": ("killed", 137, 9, "killed by SIGKILL, which systemd did not send"),
        "hung-hvt": ("stalled", 137, 9, "the tender hung"),
    }
    for job, shown in expected.items():
        check(ended(job), shown)


REMARK = "Sent signal SIGKILL to main process 1 (x) on client request, killed by the OOM killer"
"""A job's name, which PID 1 repeats in its remarks on the unit."""


def sleeper(job: str, target: str) -> str:
    return hcl(job, config(f"sleeper.{target}"), kind="batch", job=f'name = "{REMARK}"')


def asleep(job: str) -> str:
    """Return the unit of a job with a sleeping guest."""
    alloc = running(job)
    alloc.says("sleeping")
    return alloc.unit()


def main(service: str) -> str:
    return unit_property(service, "MainPID")


def test_a_scope_that_systemd_stops(jobs: Jobs) -> None:
    """systemd has no main process of a scope: only its log messages show that a stop came first."""
    [alloc] = jobs.run(hcl("scoped", config("sleeper.spt", 'unit = "scope"'), kind="batch"))
    alloc.says("sleeping")
    ok("systemctl", "stop", f"solo5-task-guest-{alloc[:8]}-*.scope")
    check(ended("scoped"), ("stopped", 143, 15, ""))


def test_a_host_that_goes_down(jobs: Jobs) -> None:
    jobs.submit(sleeper("down", "hvt"))
    service = asleep("down")
    with going_down():
        ok("systemctl", "stop", service)
        check(ended("down"), ("host-shutdown", 143, 15, ""))


def test_a_unit_that_was_taken_away_is_lost_and_that_is_said(jobs: Jobs, agent: Agent) -> None:
    """The driver is stopped meanwhile, so that the unit does not exist when it continues."""
    jobs.submit(sleeper("lost", "spt"))
    service = asleep("lost")
    name = service.removeprefix("solo5-task-").removesuffix(".service")
    ok("kill", "-STOP", str(agent.plugin()))
    ok("systemctl", "stop", f"solo5-outcome@{name}.target", service)
    eventually(lambda: unit_property(service, "LoadState") == "not-found", "systemd has forgotten it")
    ok("kill", "-CONT", str(agent.plugin()))
    alloc = ended("lost")
    assert "the task's unit was removed before its outcome could be read" in terminated(alloc)["DisplayMessage"]
    assert alloc.task()["Failed"], "an unknown outcome is no success"
