"""Many declared tasks that wait without a process, as after their first run.

In a booted machine, as root: `python3 -m tests.bench.dormant COUNT` has so many, enabled, of which one has run.
"""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from ipaddress import IPv4Address

from tests.bench import declared
from tests.bench.declared import ETC
from tests.contract.netns import run

from solo5_systemd.base.names import TaskName
from solo5_systemd.network.derived_addresses import mac_of, number_of
from solo5_systemd.network.lease_files import read_lease_record
from solo5_systemd.network.model import LeaseState
from solo5_systemd.network.remembered_addresses import LastRequest, declaration_digest, read_request, write_request

NETWORK = "bench-activation"
NAME = "bench{:04}"
"""Without a dash, as names of tasks mostly are: PID 1 looks for drop-ins of each prefix that ends with one."""

FIRST = NAME.format(0)
PORT = 21000
NO_LIMIT = "[Unit]\nStartLimitIntervalSec=0\n"
WAITS = "IdleSec=1h\nIdleAction=stop\n"
TIMEOUT_S = 120.0


def declare_network() -> None:
    """Declare the network of these tasks."""
    ETC.mkdir(exist_ok=True)
    (ETC / f"{NETWORK}.toml").write_text(f'[network.{NETWORK}]\nipv4 = "10.156.0.0/18"\n')


def declare(name: str, keys: str, *, before: str = NO_LIMIT) -> None:
    """Declare a task of the network."""
    own = f"Memory=16M\nNetwork=service={NETWORK}\n{keys}"
    declared.declare(name, own, before=before, after="[Install]\nWantedBy=multi-user.target\n")


def declare_waiting(names: Sequence[str]) -> None:
    """Declare tasks that wait, each with a port."""
    for name in names:
        declare(name, f"Publish={PORT + int(name.removeprefix('bench'))}:80\n{WAITS}")


def keep(names: Sequence[str]) -> None:
    """Have the declared tasks known, as if each had run; the first one has."""
    first = read_request(TaskName(FIRST))
    for number, name in enumerate(names, 1):
        write_request(TaskName(name), _kept(first, TaskName(name), number))


def _kept(first: LastRequest, task: TaskName, number: int) -> LastRequest:
    """Return the request of a task that ran as the first one has."""
    [nic], [port] = first.nics, first.ports
    own = replace(nic, mac=mac_of(number_of("mac", task, nic.nic)), ipv4=IPv4Address("10.156.1.0") + number)
    ports = (replace(port, host_port=port.host_port + number),)
    return replace(first, nics=(own,), ports=ports, declaration=declaration_digest(task))


def state(name: str) -> LeaseState | None:
    """Return the state of a task's lease; None: it has none."""
    record = read_lease_record(TaskName(name))
    return record.state if record else None


def until(holds: Callable[[], bool]) -> None:
    """Wait for other processes."""
    end = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def main() -> None:
    """Have as many tasks as the argument has, enabled."""
    names = [NAME.format(number) for number in range(int(sys.argv[1]))]
    declare_network()
    declare_waiting(names)
    run("systemctl", "daemon-reload")
    run("systemctl", "start", f"{FIRST}.socket")
    until(lambda: state(FIRST) is LeaseState.ATTACHED)
    keep(names[1:])
    run("systemctl", "enable", *names)


if __name__ == "__main__":
    main()
