"""Groups of several tasks: which task publishes a port, for each lifecycle."""

import json
import re
from pathlib import Path

from tests.machine.conftest import GUESTS, Outside, eventually, ok
from tests.machine.nomad.agent import NODE_ADDRESS
from tests.machine.nomad.jobs import (
    NEVER_AGAIN,
    SERVER,
    SLEEPER,
    Allocation,
    Jobs,
    ended,
    group_hcl,
    network,
    port_hcl,
    task_hcl,
)

PORTS = (port_hcl("web", to=80), port_hcl("echo", to=7))
HELLO = f'unikernel = "{GUESTS}/hello.spt"'


def lifecycle(hook: str, *, sidecar: bool = False) -> str:
    return f'lifecycle {{\n  hook    = "{hook}"\n  sidecar = {str(sidecar).lower()}\n}}\n'


def server(name: str, ports: str = "", task: str = "") -> str:
    """A network guest whose responses have its name."""
    return task_hcl(name, f'{SERVER.removesuffix("]")}, "--i-am={name}"]\n{ports}', task=task)


def answers(outside: Outside, alloc: Allocation, name: str) -> None:
    """Wait until this task answers at the port `web`."""
    eventually(lambda: f"--i-am={name}" in outside.tcp(NODE_ADDRESS, alloc.port("web")), f"{name} answers")


ONE_REQUEST = """
import sys
from http.server import HTTPServer, SimpleHTTPRequestHandler
HTTPServer((sys.argv[1], int(sys.argv[2])), SimpleHTTPRequestHandler).handle_request()
"""


def test_tasks_of_a_group_have_the_ports_that_each_lists(jobs: Jobs, outside: Outside) -> None:
    """Unikernels of each lifecycle beside a leader of another driver, which listens at a port of the group itself."""
    words = ("-I", "-c", ONE_REQUEST, "${NOMAD_IP_side}", "${NOMAD_HOST_PORT_side}")
    leader = f'command = "python3"\nargs = {json.dumps(words)}'
    text = group_hcl(
        "listed",
        task_hcl("side", leader, driver="raw_exec", task="leader = true\n"),
        server("web", 'ports = ["web"]'),
        server("echo", 'ports = ["echo"]', lifecycle("prestart", sidecar=True)),
        task_hcl("after", HELLO, task=lifecycle("poststart")),
        task_hcl("last", HELLO, task=lifecycle("poststop")),
        kind="batch",
        group=NEVER_AGAIN + network(*PORTS, port_hcl("side")),
    )
    [alloc] = jobs.run(text)
    alloc.says("arguments", name="after")
    answers(outside, alloc, "web")
    alloc.says("serving", name="echo")
    assert outside.udp(NODE_ADDRESS, alloc.port("echo"), "hello") == "hello"
    eventually(lambda: "Directory listing" in outside.tcp(NODE_ADDRESS, alloc.port("side")), "the leader answers once")
    assert ended("listed") == alloc
    for name in ("web", "echo"):
        assert any("Leader Task" in event for event in alloc.events(name)), alloc.status()
    alloc.says("arguments", name="last")
    assert outside.tcp(NODE_ADDRESS, alloc.port("web")) == ""


def test_tasks_that_list_none_have_the_groups_ports_one_after_the_other(
    jobs: Jobs, outside: Outside, limits: Path
) -> None:
    """A unikernel with NICs that runs to its end first, the main one, and one without NICs beside it."""
    limits.write_text("[limits]\ntask = { addresses = 63 }\njob = { addresses = 127 }\n")  # more than a tenth of /24
    text = group_hcl(
        "unlisted",
        task_hcl("first", f'unikernel = "{GUESTS}/net63.spt"', task=lifecycle("prestart")),
        server("web"),
        task_hcl("beside", SLEEPER, task=lifecycle("poststart", sidecar=True)),
        task_hcl("last", f'unikernel = "{GUESTS}/net63.spt"', task=lifecycle("poststop")),
        group=NEVER_AGAIN + network(*PORTS),
    )
    [alloc] = jobs.run(text)
    alloc.says("service62", name="first")
    alloc.says("sleeping", name="beside")
    answers(outside, alloc, "web")
    ok("nomad", "job", "stop", "-detach", "unlisted")
    assert ended("unlisted") == alloc
    alloc.says("service62", name="last")
    assert alloc.task("last")["Failed"] is False


def test_port_that_two_tasks_would_have_is_refused_with_what_to_write(jobs: Jobs) -> None:
    alloc = ended(jobs.submit(group_hcl("both", server("one"), server("two"), group=NEVER_AGAIN + network(*PORTS))))
    said = " ".join(event for name in ("one", "two") for event in alloc.events(name))
    assert re.search("port (web|echo) is published to task (one|two) of the same allocation: expected each port", said)
    assert 'List what each task has: config { ports = ["' in said
