"""The duration and the event of a stop: `kill_timeout` is the upper bound."""

from tests.machine.conftest import GUESTS, ok, unit_property
from tests.machine.mishaps import held_still
from tests.machine.nomad.jobs import Jobs, ended, events, hcl, says, status, task, unit

SPINNER = f'unikernel = "{GUESTS}/spinner.hvt"'


def seconds_of_stop(alloc: str) -> float:
    """Return the seconds from Nomad's request to the driver's report of the end."""
    times = {event["Type"]: event["Time"] for event in task(alloc)["Events"]}
    return float(times["Killed"] - times["Killing"]) / 1e9


def test_guest_that_never_yields_ends_at_once(jobs: Jobs) -> None:
    """The signal is handled by its tender, without the guest."""
    [alloc] = jobs.run(hcl("spinning", SPINNER, kill_timeout="30s"))
    says(alloc, "spinning")
    ok("nomad", "job", "stop", "-detach", "spinning")
    assert ended("spinning") == alloc
    assert seconds_of_stop(alloc) < 30
    assert "Driver: Stopped on request (SIGTERM)" in " ".join(events(alloc)), status(alloc)


def test_tender_that_takes_no_signal_is_killed_after_kill_timeout(jobs: Jobs) -> None:
    [alloc] = jobs.run(hcl("held", SPINNER, kill_timeout="3s"))
    says(alloc, "spinning")
    with held_still(unit_property(unit(alloc), "MainPID")):
        ok("nomad", "job", "stop", "-detach", "held")
        assert ended("held") == alloc
    assert seconds_of_stop(alloc) >= 3
    assert "Driver: Stopped on request (SIGKILL)" in " ".join(events(alloc)), status(alloc)
    [terminated] = [event for event in task(alloc)["Events"] if event["Type"] == "Terminated"]
    assert (terminated["Details"]["exit_code"], terminated["Details"]["signal"]) == ("137", "9")
