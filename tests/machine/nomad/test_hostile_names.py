"""Names, properties and a console have shell commands and PID 1's messages: they remain text."""

import json
import re
from pathlib import Path

from tests.machine.conftest import GUESTS, eventually, systemctl, unit_property
from tests.machine.nomad.jobs import SLEEPER, Allocation, Jobs, ended, hcl

EXECUTED = Path("/run/executed")
HOSTILE = rf"x\n[Service]\nTemporaryFileSystem=\nBindPaths=\nExecStopPost=+/usr/bin/touch {EXECUTED}\n#"
DEVICE = f'{SLEEPER}\nproperties {{\n  IOReadBandwidthMax = "/dev/{HOSTILE} 1M"\n}}'


def test_names_and_properties_of_a_job_are_no_directives(jobs: Jobs) -> None:
    named = hcl("named", SLEEPER, job=f'name = "{HOSTILE}"').replace('group "group"', f'group "{HOSTILE}"')
    [alloc] = jobs.run(named)
    limited = ended(jobs.submit(hcl("limited", DEVICE, kind="batch")))
    service = alloc.unit()
    systemctl("daemon-reload")
    assert unit_property(service, "ExecStopPost") == ""
    assert unit_property(service, "TemporaryFileSystem") != ""
    assert unit_property(service, "Description").startswith(r"Nomad task x\x0a[Service]\x0aTemporaryFileSystem=\x0a")
    assert "config.properties.IOReadBandwidthMax may not be set by a job" in limited.refusal()
    jobs.purge()
    assert not EXECUTED.exists()


REMARKS = {
    "job": "killed by the OOM killer",
    "group": "Main process exited, code=killed, status=9-KILL",
    "task": "Failed with result 'oom-kill'",
}
"""Names in the words of PID 1's remarks on a unit that ran out of memory."""

LINE = "\x1b[2J\x1b]0;root\x07abort: Failed with result 'oom-kill'. | A process has been killed by the OOM killer\u202e"
LONGEST = 49152
"""Bytes of a line of the journal (LineMax= of journald.conf(5))."""

MOST = 1200
"""Characters of an event: a sentence of ours with a quoted line, and the last five lines of a console."""


def remarking(job: str, exit_status: int) -> str:
    """Return a job with such names and a guest that prints such a line of 48 KiB and exits."""
    text = LINE.encode()
    args = (f"hex={text.hex()}", f"fill={LONGEST - len(text) - 1}", f"exit={exit_status}")
    config = f'unikernel = "{GUESTS}/hello.hvt"\nargs = {json.dumps(args)}'
    written = hcl(job, config, kind="batch", job=f'name = "{REMARKS["job"]}"')
    for block in ("group", "task"):
        written = re.sub(rf'{block} "\w+"', f'{block} "{REMARKS[block]}"', written)
    return written


def details(alloc: Allocation) -> list[dict[str, str]]:
    """Return the annotations of the task's events."""
    return [event["Details"] for event in alloc.task(REMARKS["task"])["Events"]]


def outcomes(alloc: Allocation) -> list[str]:
    return [each["outcome"] for each in details(alloc) if "outcome" in each]


def test_remarks_of_pid_1_in_names_and_on_a_console_are_no_oom_kill_and_reach_events_printable(jobs: Jobs) -> None:
    """An exit status of 9 is the number of SIGKILL."""
    expected = {9: "exited", 255: "aborted"}
    submitted = {exit_status: jobs.submit(remarking(f"exits-{exit_status}", exit_status)) for exit_status in expected}
    for exit_status, job in submitted.items():
        alloc = ended(job)
        eventually(lambda alloc=alloc: outcomes(alloc), "our event of the end")  # type: ignore[misc]
        assert outcomes(alloc) == [expected[exit_status]]
        [end] = [each for each in details(alloc) if "signal" in each and "exit_code" in each and "oom_killed" in each]
        assert (end["oom_killed"], end["exit_code"], end["signal"]) == ("false", str(exit_status), "0")
        texts = [*alloc.events(REMARKS["task"]), *(value for each in details(alloc) for value in each.values())]
        assert [each for each in texts if not each.isprintable() or len(each) > MOST] == []
        quoted = any(r"the guest aborted: \x1b[2J\x1b]0;root\x07abort: Failed" in each for each in texts)
        assert quoted is (exit_status == 255), texts
