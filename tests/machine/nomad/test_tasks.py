"""A task's life under Nomad: start, signals, stop."""

from collections.abc import Iterator

import pytest
from tests.machine.conftest import GUESTS, eventually, inspect, logged, ok, sh, unit_property
from tests.machine.mishaps import held_still
from tests.machine.nomad.agent import Agent
from tests.machine.nomad.jobs import (
    SERVER,
    SLEEPER,
    Jobs,
    allocations,
    ended,
    events,
    happens,
    hcl,
    logs,
    name_of,
    says,
    status,
    task,
    unit,
)


@pytest.fixture(scope="module")
def alloc(installed: Agent) -> Iterator[str]:
    """An allocation whose guest sleeps, for all tests that leave it running."""
    jobs = Jobs()
    [alloc] = jobs.run(hcl("seen", SLEEPER))
    says(alloc, "sleeping")
    yield alloc
    jobs.purge()


@pytest.mark.usefixtures("agent")
def test_task_is_a_unit_with_nomads_names_in_the_journal(alloc: str) -> None:
    logged("sleeping", "NOMAD_JOB_NAME=seen", f"NOMAD_ALLOC_ID={alloc}")
    assert unit_property(unit(alloc), "ActiveState") == "active"
    assert "seen/group/guest" in unit_property(unit(alloc), "Description")
    assert any("NIC" in event for event in events(alloc)) is False, "it has none"


def test_guest_and_tender_have_a_stream_each(jobs: Jobs) -> None:
    [alloc] = jobs.run(hcl("streams", SLEEPER))
    says(alloc, "sleeping")
    ok("nomad", "alloc", "signal", "-s", "SIGTERM", alloc, "guest")
    eventually(lambda: task(alloc)["State"] == "dead", "the signal ends it")
    says(alloc, "Exiting on signal", "stderr")
    assert "Exiting on signal" not in logs(alloc)
    assert "sleeping" not in logs(alloc, "stderr")


@pytest.mark.usefixtures("agent")
def test_stop_signal_freezes_and_continue_thaws(alloc: str) -> None:
    ok("nomad", "alloc", "signal", "-s", "SIGSTOP", alloc, "guest")
    assert unit_property(unit(alloc), "FreezerState") == "frozen"
    happens(alloc, "Frozen by SIGSTOP")
    ok("nomad", "alloc", "signal", "-s", "SIGCONT", alloc, "guest")
    assert unit_property(unit(alloc), "FreezerState") == "running"


@pytest.mark.usefixtures("agent")
def test_signal_without_effect_is_an_event_and_one_that_does_not_exist_an_error(alloc: str) -> None:
    ok("nomad", "alloc", "signal", "-s", "SIGUSR1", alloc, "guest")
    happens(alloc, "SIGUSR1 was not sent: a unikernel has no signal handlers")
    refused = sh("nomad", "alloc", "signal", "-s", "SIGRELOAD", alloc, "guest")
    assert refused.returncode != 0
    assert "signal 'SIGRELOAD' does not exist" in refused.stderr
    assert task(alloc)["State"] == "running"


@pytest.mark.usefixtures("agent")
def test_exec_says_that_there_is_nothing_to_execute(alloc: str) -> None:
    refused = sh("nomad", "alloc", "exec", "-i=false", "-t=false", "-task", "guest", alloc, "/bin/sh")
    assert refused.returncode != 0
    assert "unikernel" in refused.stderr
    assert task(alloc)["State"] == "running"


def test_stopped_job_is_complete_and_keeps_its_log(jobs: Jobs) -> None:
    [alloc] = jobs.run(hcl("halt", SLEEPER))
    says(alloc, "sleeping")
    left = unit(alloc)
    ok("nomad", "job", "stop", "-detach", "halt")
    assert ended("halt") == alloc
    assert allocations("halt")[0]["ClientStatus"] == "complete"
    assert "sleeping" in logs(alloc)
    assert "Killed" in status(alloc)
    ok("nomad", "job", "stop", "-purge", "-detach", "halt")
    eventually(lambda: left not in ok("systemctl", "list-units", "--all", "--plain"), "the unit is removed")
    assert sh("nomad", "job", "status", "halt").returncode != 0


def test_ten_at_a_time_have_ten_addresses(jobs: Jobs) -> None:
    allocs = jobs.run(hcl("ten", SERVER, count=10), count=10)
    assert len({inspect(name_of(alloc))["nics"][0]["ipv4"] for alloc in allocs}) == 10


SPINNER = f'unikernel = "{GUESTS}/spinner.hvt"'


def seconds_of_stop(alloc: str) -> float:
    """Return the seconds from Nomad's request to the driver's report of the end."""
    times = {event["Type"]: event["Time"] for event in task(alloc)["Events"]}
    return float(times["Killed"] - times["Killing"]) / 1e9


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
