"""Reboots of a machine with declared tasks, in turns with as many units that execute the tender by hand.

    python3 -m tests.cluster.reboots [--reboots N] [--tasks N] [--dormant N]

After each reboot all tasks must be back with the addresses that they had. The figure is the time from PID 1's start
until the last guest has answered for the first time, beside that of the bare units: each a static service with a tap of
its own. Then with tasks that wait without a process, in turns with as many sockets of systemd's own and with none. It
runs in `tests/machine/boot --machines server,client1`; the clock is the host's in all machines.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from socket import gethostbyname
from statistics import median

from tests.cluster.machines import Peer
from tests.cluster.test_back_after_power_loss import PORT, tasks
from tests.cluster.traffic import get
from tests.machine.conftest import GUESTS, ok

PEER = Peer("client1")
REBOOT_TIMEOUT_S = 180.0
POLL_S = 0.1
ANSWER_TIMEOUT_S = 1.0

_BARE = """
# A bridge, then a unit for each guest: what an operator writes by hand, without a sandbox, ports or limits.
cat >/etc/systemd/system/bare-net.service <<END
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=ip link add bare type bridge
ExecStart=ip address add 10.99.0.1/16 dev bare
ExecStart=ip link set bare up
ExecStart=sysctl --quiet net.ipv4.ip_forward=1
END
i=0
while [ $i -lt "$1" ]; do
    cat >/etc/systemd/system/bare$i.service <<END
[Unit]
Requires=bare-net.service
After=bare-net.service network.target
[Service]
ExecStartPre=ip tuntap add bare$i mode tap
ExecStartPre=ip link set bare$i master bare up
ExecStart=/usr/local/bin/solo5-spt --net:service=bare$i --mem=20 -- $2 --ipv4=10.99.1.$((i + 1))/16 $3 number=$i
[Install]
WantedBy=multi-user.target
END
    i=$((i + 1))
done
systemctl daemon-reload
"""

_SOCKETS = """
# Units of systemd's own that wait in the same way: a FIFO for a service of one line.
i=0
while [ $i -lt "$1" ]; do
    printf '[Service]\nExecStart=/bin/true\n' >/etc/systemd/system/waits$i.service
    printf '[Socket]\nListenFIFO=/run/waits/%s\n[Install]\nWantedBy=multi-user.target\n' $i \
        >/etc/systemd/system/waits$i.socket
    echo waits$i.socket
    i=$((i + 1))
done | xargs systemctl enable
sync
"""


def _bare(number: int) -> tuple[str, int]:
    return f"10.99.1.{number + 1}", 80


def _declared(number: int) -> tuple[str, int]:
    return PEER.name, PORT + number


def _first_answer(target: tuple[str, int], number: int) -> float:
    """Return when a guest has answered for the first time, with its own number; monotonic seconds."""
    end = time.monotonic() + REBOOT_TIMEOUT_S
    while time.monotonic() < end:
        with suppress(OSError, EOFError, ValueError):
            if f"number={number}" in get(target, ANSWER_TIMEOUT_S):
                return time.monotonic()
        time.sleep(POLL_S)
    raise AssertionError(f"guest {number} does not answer at {target} within {REBOOT_TIMEOUT_S} s")


def _reboot(targets: Sequence[tuple[str, int]]) -> float:
    """Power the machine off and on; return the seconds from PID 1's start until the last guest's first answer."""
    boot = PEER.boot_id()
    PEER.kill()
    PEER.boot()
    with ThreadPoolExecutor(len(targets)) as pool:
        answered = list(pool.map(_first_answer, targets, range(len(targets))))
    assert PEER.boot_id() != boot
    began = int(PEER.ok("systemctl", "show", "--property=UserspaceTimestampMonotonic", "--value")) / 1e6
    return max(answered) - began


def _enable(units: Sequence[str], others: Sequence[str]) -> None:
    PEER.ok("systemctl", "disable", *others)
    PEER.ok("systemctl", "enable", *units)
    PEER.ok("sync")


def _boot_s() -> float:
    """Power the machine off and on; return the seconds from PID 1's start until its start job is over."""
    PEER.kill()
    PEER.boot()
    state = PEER.sh("systemctl", "is-system-running", "--wait", seconds=REBOOT_TIMEOUT_S).stdout.strip()
    assert state == "running", PEER.sh("systemctl", "--failed").stdout
    shown = PEER.ok("systemctl", "show", "--property=UserspaceTimestampMonotonic,FinishTimestampMonotonic")
    times = dict(line.split("=") for line in shown.splitlines())
    return (int(times["FinishTimestampMonotonic"]) - int(times["UserspaceTimestampMonotonic"])) / 1e6


def _dormant(count: int, reboots: int) -> None:
    """Print how long a boot takes with tasks that wait, with as many bare sockets, and with none.

    All tasks wait after each boot, and none runs.
    """
    PEER.ok("env", "PYTHONPATH=/srv", "python3", "-m", "tests.bench.dormant", str(count), seconds=600)
    times: dict[str, list[float]] = {"dormant": [], "bare sockets": [], "none": []}
    for _ in range(reboots):
        times["dormant"].append(_boot_s())
        end = time.monotonic() + REBOOT_TIMEOUT_S
        while (found := _phases()) != {"dormant": count}:
            assert time.monotonic() < end, found
            time.sleep(POLL_S)
        PEER.ok("sh", "-c", "mkdir -p /var/tmp/away && mv /etc/solo5/bench* /var/tmp/away/ && sync")
        times["none"].append(_boot_s())
        PEER.ok("sh", "-euc", _SOCKETS, "sh", str(count))
        times["bare sockets"].append(_boot_s())
        PEER.ok("sh", "-c", "find /etc/systemd/system -name 'waits*' -delete")
        PEER.ok("sh", "-c", "mv /var/tmp/away/* /etc/solo5/ && sync")
    least = median(times["none"])
    for kind, found_s in times.items():
        middle = median(found_s)
        print(f"{kind}: boot in {middle:.1f} s ({min(found_s):.1f} to {max(found_s):.1f}), {middle - least:.1f} s more")
    print(f"{count} dormant tasks: none started")


def _phases() -> Mapping[str, int]:
    """Return how many tasks there are in each phase."""
    return Counter(each["phase"] for each in json.loads(PEER.ok("solo5ctl", "ps", "--all", "--json")))


def _awake(names: list[str], reboots: int) -> None:
    """Print when the last guest answers, and that of as many bare units."""
    numbers = range(len(names))
    bare = [f"bare{number}" for number in numbers]
    PEER.ok("sh", "-euc", _BARE, "sh", str(len(names)), str(GUESTS / "net.spt"), "--ipv4-gateway=10.99.0.1")
    ok("ip", "route", "add", "10.99.0.0/16", "via", gethostbyname(PEER.name))
    here: dict[str, object] | None = None
    times: dict[str, list[float]] = {"declared": [], "bare": []}
    for turn in range(1, reboots + 1):
        _enable(names, bare)
        times["declared"].append(_reboot([_declared(number) for number in numbers]))
        now = PEER.nics(*names)
        assert here in (None, now), f"addresses have changed: {here} before, {now} after reboot {turn}"
        here = now
        state = PEER.sh("systemctl", "is-system-running", "--wait").stdout.strip()
        assert state == "running", PEER.sh("systemctl", "--failed").stdout
        _enable(bare, names)
        times["bare"].append(_reboot([_bare(number) for number in numbers]))
        print(f"{turn:3}: " + ", ".join(f"{kind} {found[-1]:.1f} s" for kind, found in times.items()), flush=True)
    print(f"{len(names)} tasks, {reboots} reboots: all back, with the same addresses")
    for kind, found in times.items():
        print(f"{kind}: the last guest answers after {median(found):.1f} s ({min(found):.1f} to {max(found):.1f})")
    print(f"ratio: {median(times['declared']) / median(times['bare']):.2f}")


def main() -> int:
    """Print the figures of each reboot, and their ratio."""
    parser = argparse.ArgumentParser(prog="python3 -m tests.cluster.reboots", description=__doc__)
    parser.add_argument("--reboots", type=int, default=10, metavar="N", help="of each kind (default: %(default)s)")
    parser.add_argument("--tasks", type=int, default=50, metavar="N", help="how many (default: %(default)s)")
    parser.add_argument("--dormant", type=int, default=1000, metavar="N", help="how many (default: %(default)s)")
    options = parser.parse_args()
    declared = tasks(options.tasks)
    with PEER.declared(declared):
        _awake(list(declared), options.reboots)
    _dormant(options.dormant, options.reboots)
    return 0


if __name__ == "__main__":
    sys.exit(main())
