"""Unsupported and wrong options are refused without a retry; `nomad alloc status` has the reason."""

import re
from typing import Any

from tests.machine.conftest import Machine, ok, sh
from tests.machine.nomad.jobs import SERVER, SLEEPER, TWO_STARTS, Jobs, ended, hcl, network, port_hcl

PORT = network(port_hcl("web", static=8088, to=80))
NO_IMAGE = 'template {\n  data = "no image"\n  destination = "local/bad.hvt"\n}\n'


def dns(lines: str) -> str:
    """Return the network block of a group."""
    return f"network {{\n  dns {{\n{lines}\n  }}\n}}\n"


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "no image at all": ('unikernel = "local/bad.hvt"', {"task": NO_IMAGE}, r"bad\.hvt.*ELF"),
    "nothing there": ('unikernel = "missing.hvt"', {}, r"missing\.hvt"),
    "an image that is nobody's": ('unikernel = "/etc/hostname"', {}, r"/etc/hostname.*expected a file below"),
    "an unknown NIC": (f'{SERVER}\nnic "other" {{\n}}', {}, r"other.*service"),
    "a property of its own": (
        f'{SLEEPER}\nproperties {{\n  User = "root"\n}}',
        {},
        r"config\.properties\.User may not be set by a job",
    ),
    "more processes": (
        f'{SLEEPER}\nproperties {{\n  TasksMax = "infinity"\n}}',
        {},
        r"config\.properties\.TasksMax is 'infinity': expected no more than '16'",
    ),
    "a user": (SLEEPER, {"task": 'user = "nobody"'}, r"sets user 'nobody'"),
    "name servers that no argument has": (
        f'{SLEEPER}\nargs = ["{{{{dns}}}}"]',
        {"group": TWO_STARTS + dns('servers = ["192.0.2.53"]')},
        r"network\.dns\.servers, which has no effect: expected {dns} in an argument of the guest, or a network with "
        r'dhcp = true\. Add an argument that the guest takes, such as "--dns-servers={dns\.udp}", or remove',
    ),
    "a name server that is a command": (
        f'{SLEEPER}\nargs = ["{{dns}}"]',
        {"group": TWO_STARTS + dns('servers = ["; rm"]')},
        r"network\.dns: name server '; rm' is not usable",
    ),
    "a search domain with control characters": (
        f'{SLEEPER}\nargs = ["{{search}}"]',
        {"group": TWO_STARTS + dns(r'searches = ["a\u001b[2J"]')},
        r"search domain 'a\\x1b\[2J' is not a domain name",
    ),
}


def test_is_refused_with_the_reason_and_not_tried_again(jobs: Jobs) -> None:
    submitted = {
        what: jobs.submit(hcl(f"refused-{number}", config, kind="batch", **{"group": TWO_STARTS, **more}))
        for number, (what, (config, more, _)) in enumerate(REFUSED.items())
    }
    wrong = {}
    for what, name in submitted.items():
        alloc = ended(name)
        read = alloc.refusal()
        is_final = "Driver Failure" in read and "unrecoverable" in read and alloc.task()["Restarts"] == 0
        if not is_final or not re.search(REFUSED[what][2], read):
            wrong[what] = read
    assert wrong == {}


def test_port_that_another_task_has_may_be_tried_again(jobs: Jobs, machine: Machine) -> None:
    ok("solo5ctl", "run", "--detach", "--name", "first", "--publish", "8088:80", "/srv/guests/net.spt")
    try:
        alloc = ended(jobs.submit(hcl("second", SERVER, group=TWO_STARTS + PORT)))
        read = alloc.status()
        assert re.search(r"8088.*first|first.*8088", " ".join(read.split())), read
        assert alloc.task()["Restarts"] == 1, "by its restart policy"
        assert alloc.about()["ClientStatus"] == "failed"
    finally:
        sh("solo5ctl", "rm", "--force", "first")
