"""Unsupported and wrong options are refused without a retry; `nomad alloc status` has the reason."""

import re
from typing import Any

import pytest
from tests.machine.conftest import Machine, ok, sh
from tests.machine.nomad.jobs import SERVER, SLEEPER, TWO_STARTS, Jobs, allocation, ended, hcl, status, task

PORT = 'network {\n  port "web" {\n    static = 8088\n    to = 80\n  }\n}\n'
NO_IMAGE = 'template {\n  data = "no image"\n  destination = "local/bad.hvt"\n}\n'


def job(config: str, **more: Any) -> str:
    return hcl("refused", config, kind="batch", **{"group": TWO_STARTS, **more})


REFUSED = {
    "no image at all": (job('unikernel = "local/bad.hvt"', task=NO_IMAGE), r"bad\.hvt.*ELF"),
    "nothing there": (job('unikernel = "missing.hvt"'), r"missing\.hvt"),
    "an image that is nobody's": (
        job('unikernel = "/etc/hostname"'),
        r"/etc/hostname.*expected a file below",
    ),
    "another tender": (job(f'{SLEEPER}\ntender = "spt"'), r"hvt.*spt|spt.*hvt"),
    "an unknown tender": (job(f'{SLEEPER}\ntender = "xen"'), r"config\.tender is 'xen'"),
    "an unknown NIC": (job(f'{SERVER}\nnic "other" {{\n}}'), r"other.*service"),
    "an unknown network": (
        job(f'{SERVER}\nnic "service" {{\n  network = "elsewhere"\n}}'),
        r"elsewhere.*default",
    ),
    "an unknown port": (job(f'{SERVER}\nports = ["ssh"]'), r"config\.ports names 'ssh'"),
    "an unknown placeholder": (job(f'{SLEEPER}\nargs = ["{{net.absent.ipv4}}"]'), r"net\.absent\.ipv4"),
    "a property of its own": (
        job(f'{SLEEPER}\nproperties {{\n  User = "root"\n}}'),
        r"config\.properties\.User may not be set by a job",
    ),
    "more processes": (
        job(f'{SLEEPER}\nproperties {{\n  TasksMax = "infinity"\n}}'),
        r"config\.properties\.TasksMax is 'infinity': expected no more than '16'",
    ),
    "a user": (job(SLEEPER, task='user = "nobody"'), r"sets user 'nobody'"),
    "a resolver": (
        job(SLEEPER, group=TWO_STARTS + 'network {\n  dns {\n    servers = ["192.0.2.53"]\n  }\n}\n'),
        r"no resolv\.conf",
    ),
    "hardly any memory": (job(SLEEPER, memory=10), r"memory"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_is_refused_with_the_reason_and_not_tried_again(jobs: Jobs, what: str) -> None:
    text, reason = REFUSED[what]
    alloc = ended(jobs.submit(text))
    read = status(alloc)
    assert re.search(reason, " ".join(read.split())), read
    assert "Driver Failure" in read
    assert "unrecoverable" in read
    assert task(alloc)["Restarts"] == 0


MISTYPED = {
    "an unknown key": (f'{SLEEPER}\nunikernal = "x"', r"unikernal"),
    "no image": ('args = ["x"]', r"unikernel"),
    "a list for a text": ('unikernel = ["a"]', r"unikernel"),
}


@pytest.mark.parametrize("what", MISTYPED)
def test_is_no_valid_job(jobs: Jobs, what: str) -> None:
    config, reason = MISTYPED[what]
    alloc = ended(jobs.submit(hcl("mistyped", config, kind="batch")))
    read = " ".join(status(alloc).split())
    assert "Failed Validation" in read
    assert re.search(reason, read), read


def test_port_that_another_task_has_may_be_tried_again(jobs: Jobs, machine: Machine) -> None:
    ok("solo5ctl", "run", "--detach", "--name", "first", "--publish", "8088:80", "/srv/guests/net.spt")
    try:
        alloc = ended(jobs.submit(hcl("second", SERVER, group=TWO_STARTS + PORT)))
        read = status(alloc)
        assert re.search(r"8088.*first|first.*8088", " ".join(read.split())), read
        assert task(alloc)["Restarts"] == 1, "by its restart policy"
        assert allocation(alloc)["ClientStatus"] == "failed"
    finally:
        sh("solo5ctl", "rm", "--force", "first")
