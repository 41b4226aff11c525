"""A task's life under Nomad: start, signals, stop."""

from collections.abc import Iterator

import pytest
from tests.machine.conftest import GUESTS, eventually, inspect, logged, ok, sh, unit_property
from tests.machine.mishaps import held_still
from tests.machine.nomad.agent import Agent
from tests.machine.nomad.jobs import SERVER, SLEEPER, Allocation, Jobs, allocations, ended, hcl


@pytest.fixture(scope="module")
def alloc(installed: Agent) -> Iterator[str]:
    """An allocation whose guest sleeps, for all tests that leave it running."""
    jobs = Jobs()
    [alloc] = jobs.run(hcl("seen", SLEEPER))
    alloc.says("sleeping")
    yield alloc
    jobs.purge()


@pytest.mark.usefixtures("agent")
def test_task_is_a_unit_with_nomads_names_in_the_journal(alloc: Allocation) -> None:
    logged("sleeping", "NOMAD_JOB_NAME=seen", f"NOMAD_ALLOC_ID={alloc}")
    assert unit_property(alloc.unit(), "ActiveState") == "active"
    assert "seen/group/guest" in unit_property(alloc.unit(), "Description")
    assert any("NIC" in event for event in alloc.events()) is False, "it has none"


def test_guest_and_tender_have_a_stream_each(jobs: Jobs) -> None:
    [alloc] = jobs.run(hcl("streams", SLEEPER))
    alloc.says("sleeping")
    ok("nomad", "alloc", "signal", "-s", "SIGTERM", alloc, "guest")
    eventually(lambda: alloc.task()["State"] == "dead", "the signal ends it")
    alloc.says("Exiting on signal", "stderr")
    assert "Exiting on signal" not in alloc.logs()
    assert "sleeping" not in alloc.logs("stderr")


@pytest.mark.usefixtures("agent")
def test_stop_signal_freezes_and_continue_thaws(alloc: Allocation) -> None:
    ok("nomad", "alloc", "signal", "-s", "SIGSTOP", alloc, "guest")
    assert unit_property(alloc.unit(), "FreezerState") == "frozen"
    alloc.happens("Frozen by SIGSTOP")
    ok("nomad", "alloc", "signal", "-s", "SIGCONT", alloc, "guest")
    assert unit_property(alloc.unit(), "FreezerState") == "running"


@pytest.mark.usefixtures("agent")
def test_signal_without_effect_is_an_event_and_one_that_does_not_exist_an_error(alloc: Allocation) -> None:
    ok("nomad", "alloc", "signal", "-s", "SIGUSR1", alloc, "guest")
    alloc.happens("SIGUSR1 was not sent: a unikernel has no signal handlers")
    refused = sh("nomad", "alloc", "signal", "-s", "SIGRELOAD", alloc, "guest")
    assert refused.returncode != 0
    assert "signal 'SIGRELOAD' does not exist" in refused.stderr
    assert alloc.task()["State"] == "running"


@pytest.mark.usefixtures("agent")
def test_exec_is_refused_since_a_guest_has_no_programs(alloc: Allocation) -> None:
    refused = sh("nomad", "alloc", "exec", "-i=false", "-t=false", "-task", "guest", alloc, "/bin/sh")
    assert refused.returncode != 0
    assert "unikernel" in refused.stderr
    assert alloc.task()["State"] == "running"


def test_stopped_job_is_complete_and_keeps_its_log(jobs: Jobs) -> None:
    [alloc] = jobs.run(hcl("halt", SLEEPER))
    alloc.says("sleeping")
    left = alloc.unit()
    ok("nomad", "job", "stop", "-detach", "halt")
    assert ended("halt") == alloc
    assert allocations("halt")[0]["ClientStatus"] == "complete"
    assert "sleeping" in alloc.logs()
    assert "Killed" in alloc.status()
    ok("nomad", "job", "stop", "-purge", "-detach", "halt")
    eventually(lambda: left not in ok("systemctl", "list-units", "--all", "--plain"), "the unit is removed")
    assert sh("nomad", "job", "status", "halt").returncode != 0


def test_ten_at_a_time_have_ten_addresses(jobs: Jobs) -> None:
    allocs = jobs.run(hcl("ten", SERVER, count=10), count=10)
    assert len({inspect(alloc.name())["nics"][0]["ipv4"] for alloc in allocs}) == 10


SPINNER = f'unikernel = "{GUESTS}/spinner.hvt"'


def seconds_of_stop(alloc: Allocation) -> float:
    """Return the seconds from Nomad's request to the driver's report of the end."""
    times = {event["Type"]: event["Time"] for event in alloc.task()["Events"]}
    return float(times["Killed"] - times["Killing"]) / 1e9


def test_tender_that_takes_no_signal_is_killed_after_kill_timeout(jobs: Jobs) -> None:
    [alloc] = jobs.run(hcl("held", SPINNER, kill_timeout="3s"))
    alloc.says("spinning")
    with held_still(unit_property(alloc.unit(), "MainPID")):
        ok("nomad", "job", "stop", "-detach", "held")
        assert ended("held") == alloc
    assert seconds_of_stop(alloc) >= 3
    assert "Driver: Stopped on request (SIGKILL)" in " ".join(alloc.events()), alloc.status()
    [terminated] = [event for event in alloc.task()["Events"] if event["Type"] == "Terminated"]
    assert (terminated["Details"]["exit_code"], terminated["Details"]["signal"]) == ("137", "9")
