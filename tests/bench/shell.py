"""`solo5ctl run` from a shell; its floor is `systemd-run` with the same sandbox, and the tap and port made by hand.

The floor has its bridge and its table before it is measured. So has ours beside another task of the network; the first
task of a network makes them.
"""

import argparse
import shlex
from collections.abc import Sequence
from contextlib import ExitStack

from tests.bench import processes
from tests.bench.driver import GUESTS
from tests.bench.extent import extent
from tests.bench.figures import Report, times
from tests.contract.netns import run

ROUNDS = extent(20, 1)
WARM = extent(2, 0)
"""Rounds before these, which are not measured: imports, and modules of the kernel."""

ADDRESS, PORT = "192.0.2.1", 30000
GUEST = "10.76.0.2"

TABLE = f"""
table ip hand {{
    map published {{ type inet_proto . inet_service : ipv4_addr . inet_service; }}
    chain prerouting {{
        type nat hook prerouting priority dstnat
        ip daddr {ADDRESS} dnat ip addr . port to meta l4proto . th dport map @published
    }}
}}
"""

BY_HAND = f"""
ip tuntap add hand1 mode tap
ip link set hand1 master hand0 up
nft add element ip hand published '{{ udp . {PORT} : {GUEST} . 7 }}'
exec"""
"""What an operator writes before the tender."""

LEFT_OUT = {"Description", "Type", "ExecStart", "Wants", "Requires", "After", "User"} | {
    "SyslogIdentifier", "LogExtraFields", "NetworkNamespacePath",
}  # fmt: skip
"""What names our task, its other units, its user and the namespace of its taps; everything else is its confinement."""

SPELT = {
    "PrivateTmp=disconnected": "PrivateTmpEx=disconnected",
    "ProtectControlGroups=strict": "ProtectControlGroupsEx=strict",
}
"""Lines that systemd-run reads in another spelling only."""

TASK = (
    *("--name", "bench-shell", "--publish", f"{ADDRESS}:{PORT}:7/udp", "--memory", "32M", f"{GUESTS}/net.spt"),
    *("--ipv4={net.service.ipv4_cidr}", "--ipv4-gateway={net.service.gateway4}"),
)
OTHER = ("solo5ctl", "run", "--detach", "--name", "bench-other", *TASK[4:])


def measure(report: Report, _: argparse.Namespace) -> None:
    """Add the figures."""
    first, beside, floors = [], [], []
    with ExitStack() as stack:
        run("ip", "address", "add", f"{ADDRESS}/32", "dev", "lo")
        stack.callback(run, "ip", "address", "delete", f"{ADDRESS}/32", "dev", "lo")
        run("ip", "link", "add", "hand0", "type", "bridge")
        stack.callback(run, "ip", "link", "delete", "hand0")
        run("nft", TABLE)
        stack.callback(run, "nft", "delete", "table", "ip", "hand")
        run("ip", "link", "set", "hand0", "up")
        _ours()  # stores the image, and makes the root directory
        by_hand = _systemd_run(run("solo5ctl", "run", "--dry-run", *TASK))
        for turn in range(WARM + ROUNDS):
            alone = _ours()
            run(*OTHER)
            took = _ours(), _floor(by_hand)
            run("solo5ctl", "rm", "--force", "bench-other")
            if turn >= WARM:
                first.append(alone)
                beside.append(took[0])
                floors.append(took[1])
    report.add(times("solo5ctl run --detach beside 1 (floor: systemd-run)", beside, floors))
    report.add(times("solo5ctl run --detach, the first task of its network", first, floors))


def _ours() -> float:
    took = processes.whole("solo5ctl", "run", "--detach", *TASK)
    run("solo5ctl", "rm", "--force", "bench-shell")
    return took


def _floor(command: Sequence[str]) -> float:
    took = processes.whole(*command)
    run("systemctl", "stop", "hand1")
    run("ip", "link", "delete", "hand1")
    run("nft", "flush", "map", "ip", "hand", "published")
    return took


def _systemd_run(printed: str) -> Sequence[str]:
    """Return the command that starts the same guest by hand, in the sandbox that `run --dry-run` has printed."""
    sections = [section.splitlines() for section in printed.split("\n\n")]
    unit = next(lines for lines in sections if lines[0].startswith("# solo5-task-"))
    lines = [SPELT.get(line, line) for line in unit[1:] if line.partition("=")[0] not in LEFT_OUT]
    tender = shlex.split(next(lines for lines in sections if lines[0] == "# command line")[1])
    words = ["systemd-run", "--quiet", "--collect", "--unit=hand1", "--property=User=nobody", "--service-type=exec"]
    words += [f"--property={line}" for line in lines]
    words += ["/usr/local/bin/solo5-spt", "--net:service=hand1", "--mem=24", "--", tender[tender.index("--") + 1]]
    return "sh", "-euc", f"{BY_HAND} {shlex.join([*words, f'--ipv4={GUEST}/24'])}"
