"""A job or an operator without log files of Nomad."""

from pathlib import Path

import pytest
from tests.machine.conftest import eventually, ok
from tests.machine.nomad.agent import USUAL
from tests.machine.nomad.jobs import SLEEPER, Allocation, Jobs, ended, hcl
from tests.machine.nomad.test_consoles import collectors


def in_journal(alloc: Allocation, text: str) -> None:
    journal = ("journalctl", "--no-pager", "--output=cat", f"NOMAD_ALLOC_ID={alloc}")
    eventually(lambda: text in ok(*journal), "the journal has the console")


def log_files(alloc: Allocation) -> list[Path]:
    """Return the log files of stdout, the oldest first."""
    found = alloc.file("alloc/logs").glob("guest.stdout.*")
    return sorted(found, key=lambda path: int(path.suffix[1:]))


def test_job_without_logs_has_its_console_in_the_journal_alone(jobs: Jobs) -> None:
    [alloc] = jobs.run(hcl("unlogged", SLEEPER, logs="disabled = true\nmax_files = 2\nmax_file_size = 5"))
    in_journal(alloc, "sleeping")
    assert log_files(alloc) == []
    ok("nomad", "job", "stop", "-detach", "unlogged")
    assert ended("unlogged") == alloc


@pytest.mark.configured(f"{USUAL}\ndisable_log_collection = true")
def test_operator_without_logs_has_no_collector(jobs: Jobs) -> None:
    [alloc] = jobs.run(hcl("uncollected", SLEEPER))
    in_journal(alloc, "sleeping")
    assert collectors() == []
    assert log_files(alloc) == []
    ok("nomad", "job", "stop", "-detach", "uncollected")
    assert ended("uncollected") == alloc
