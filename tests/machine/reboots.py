"""Reboots of a virtual machine with declared tasks: after each, all run again with the addresses that they had.

    python3 -m tests.machine.reboots [--reboots N] [--tasks N]

It is executed once in each boot, by `tests/machine/boot --reboot`, and exits with 75 where another boot is wanted. The
figure is the time from PID 1's start until the last guest has answered, seen from when the boot is complete.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

from tests.machine.conftest import GUESTS, eventually, inspect, ok, sh
from tests.machine.declared import ETC

AGAIN = 75
PORT = 9000
STATE = Path("/var/lib/reboots.json")
PATIENCE_S = 600
"""Seconds until all answer: on an emulated machine, fifty at once take more than the 90 s and 5 minutes of units."""

LIMITS = {
    Path("/etc/systemd/system.conf.d"): f"[Manager]\nDefaultTimeoutStartSec={PATIENCE_S}\n",
    Path("/etc/systemd/system/solo5-prepare@.service.d"): f"[Service]\nTimeoutStartSec={PATIENCE_S}\n",
}

FILE = """\
[Unikernel]
Image={image}
Memory=24M
Publish={port}:80
Argument={{mirage}} number={number}

[Install]
WantedBy=multi-user.target
"""


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _answers(number: int) -> bool:
    return f"number={number}" in sh("curl", "--silent", "--max-time", "2", f"http://127.0.0.1:{PORT + number}/").stdout


def _await_all(count: int) -> None:
    for number in range(count):
        eventually(lambda number=number: _answers(number), f"t{number} answers", PATIENCE_S)  # type: ignore[misc]


def _identities(count: int) -> dict[str, object]:
    return {name: inspect(name)["nics"] for name in (f"t{number}" for number in range(count))}


def _declare(count: int) -> None:
    names = [f"t{number}" for number in range(count)]
    for number, name in enumerate(names):
        text = FILE.format(image=GUESTS / "net.spt", port=PORT + number, number=number)
        (ETC / f"{name}.unikernel").write_text(text)
    for directory, limit in LIMITS.items():
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "slow.conf").write_text(limit)
    ok("systemctl", "daemon-reload")
    ok("systemctl", "enable", *names)
    started = sh("systemctl", "start", *names, timeout=PATIENCE_S)
    assert started.returncode == 0, started.stderr + ok("journalctl", "--boot", "--priority=warning", "--no-pager")


def main() -> int:
    """Declare the tasks in the first boot; compare them in each further one."""
    parser = argparse.ArgumentParser(prog="python3 -m tests.machine.reboots", description=__doc__)
    parser.add_argument("--reboots", type=int, default=10, metavar="N", help="how many (default: %(default)s)")
    parser.add_argument("--tasks", type=int, default=50, metavar="N", help="how many (default: %(default)s)")
    options = parser.parse_args()
    if not STATE.exists():
        _declare(options.tasks)
        _await_all(options.tasks)
        state = {"boots": [_boot()], "seconds": [], "identities": _identities(options.tasks)}
    else:
        state = json.loads(STATE.read_text())
        _await_all(options.tasks)
        began = int(ok("systemctl", "show", "--property=UserspaceTimestampMonotonic", "--value")) / 1e6
        state["seconds"].append(round(time.monotonic() - began, 1))
        assert _boot() not in state["boots"], "it was a reboot"
        assert _identities(options.tasks) == state["identities"]
        assert ok("systemctl", "is-system-running").strip() == "running", sh("systemctl", "--failed").stdout
        state["boots"].append(_boot())
        number, seconds = len(state["seconds"]), state["seconds"][-1]
        print(f"reboot {number}: {options.tasks} tasks answer {seconds} s after PID 1's start", flush=True)
    STATE.write_text(json.dumps(state))
    os.sync()
    return AGAIN if len(state["seconds"]) < options.reboots else 0


if __name__ == "__main__":
    sys.exit(main())
