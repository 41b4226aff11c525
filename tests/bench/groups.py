"""What a group's network namespace costs a start under a Nomad agent, beside raw_exec in Nomad's own bridge mode.

From the client's event "Received" to "Started", in milliseconds, as the agent records them, all four in turns.
"""

import shutil
from collections import defaultdict

from tests.bench.extent import extent
from tests.bench.figures import Report, times
from tests.contract.netns import run
from tests.machine.nomad.agent import Agent
from tests.machine.nomad.jobs import NEVER_AGAIN, SERVER, Jobs, group_hcl, task_hcl

TURNS = extent(8, 1)
BRIDGE = f'{NEVER_AGAIN}network {{\n  mode = "bridge"\n}}\n'
RAW_EXEC = task_hcl("guest", 'command = "/bin/sleep"\nargs = ["1000"]', driver="raw_exec")
OURS = task_hcl("guest", SERVER)
KINDS = {
    ("raw_exec", "host"): group_hcl("raw-host", RAW_EXEC),
    ("raw_exec", "bridge"): group_hcl("raw-bridge", RAW_EXEC, group=BRIDGE),
    ("solo5", "host"): group_hcl("solo5-host", OURS),
    ("solo5", "bridge"): group_hcl("solo5-bridge", OURS, group=BRIDGE),
}


def measure(report: Report, _: object) -> None:
    """Add the figures; none where the machine has no agent."""
    if not shutil.which("nomad") or not shutil.which("iptables"):
        return
    agent = Agent()
    for words in ("link add cable type veth peer name far", "address add 192.0.2.1/24 dev cable", "link set cable up"):
        run("ip", *words.split())
    agent.install()
    try:
        took: dict[tuple[str, str], list[float]] = defaultdict(list)
        for turn in range(TURNS + 1):
            for kind, text in KINDS.items():
                started = _start(text)
                if turn:  # not the first: bridges, modules, images
                    took[kind].append(started)
    finally:
        agent.stop()
    for mode in ("host", "bridge"):
        name = f"Nomad's Received to Started, network mode {mode} (floor: raw_exec)"
        report.add(times(name, took["solo5", mode], took["raw_exec", mode]))


def _start(text: str) -> float:
    jobs = Jobs()
    try:
        [alloc] = jobs.run(text)
        at = {event["Type"]: event["Time"] for event in alloc.about()["TaskStates"]["guest"]["Events"]}
        return float(at["Started"] - at["Received"]) / 1e6
    finally:
        jobs.purge()
