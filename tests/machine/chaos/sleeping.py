"""Sleep by hand, and what ends it: `solo5ctl wake` and packets. The same for tasks of every door."""

import json
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from tests.machine.chaos.model import Act, State, Task
from tests.machine.conftest import eventually, ok, sync_journal, unit_property
from tests.machine.nomad.agent import NODE_ADDRESS

LEASES = Path("/run/solo5/network/tasks")
FIFOS = Path("/run/solo5/waiting")
TRIES = 3

Ctl = Callable[..., CompletedProcess[str]]


def perform(act: Act, task: Task, unit: str, ctl: Ctl, check: Callable[[CompletedProcess[str]], bool]) -> None:
    """Do it, and wait until it is done.

    Args:
        ctl: `solo5ctl`, which may be killed.
        check: whether an attempt that failed did so in one sentence.
    """
    name = unit.removeprefix("solo5-task-").removesuffix(".service")
    if act is Act.REQUEST:
        _request(task, unit)
        return
    if act is Act.SLEEP:
        eventually(lambda: _is_quiet(name), f"the host is not about to ask for the address of {name}")
    begun = runs(unit) if task.state is State.DORMANT else set()
    done: CompletedProcess[str] | None = None
    for _ in range(TRIES):
        done = ctl({Act.SLEEP: "sleep", Act.WAKE: "wake"}[act], name)
        if done.returncode == 0 or (act is Act.SLEEP and task.waits and "has ended" in done.stderr):
            break
        assert check(done), f"{act} {task.name}: one sentence was expected: {done.stderr}"
    else:
        raise AssertionError(f"{act} {task.name}: {done and done.stderr}")
    if act is Act.SLEEP and task.waits:
        eventually(lambda: is_dormant(unit), f"{name} is dormant")
    elif task.state is State.DORMANT:
        # A start whose preparation is killed fails, and the next packet is another one.
        eventually(lambda: _is_active(unit) or (not ctl("wake", name).returncode and _is_active(unit)), f"{name} runs")
        _check_started_once(unit, begun)


def _request(task: Task, unit: str) -> None:
    """Send datagrams until one is answered: in the middle of a disturbance some may be lost."""
    if task.state is not State.DORMANT:
        eventually(lambda: echoes(task.port), f"{task.name} answers")
        return
    begun = runs(unit)
    eventually(lambda: echoes(task.port) or _is_active(unit), f"a packet for {task.name} starts it")
    eventually(lambda: echoes(task.port_of(task.read)), f"{task.name} answers")
    _check_started_once(unit, begun)


def _check_started_once(unit: str, before: set[str]) -> None:
    new = runs(unit) - before
    assert len(new) <= 1, f"{unit} was started {len(new)} times: {new}"


def _is_active(unit: str) -> bool:
    return unit_property(unit, "ActiveState") == "active"


def is_dormant(unit: str) -> bool:
    """Whether its run is over, and its network is that of a task that waits."""
    over = unit_property(unit, "ActiveState") in ("inactive", "failed")
    return over and lease(unit.removesuffix(".service")).get("state") == "waiting"


def lease(name: str) -> Mapping[str, Any]:
    """The lease record of a task; empty: there is none."""
    with suppress(FileNotFoundError, ValueError):  # read while it is replaced
        return dict(json.loads((LEASES / f"{name}.json").read_text()))
    return {}


def _is_quiet(name: str) -> bool:
    """Whether the host will not ask the guest whether it is still there: five seconds after a packet, and it wakes."""
    own = {each["ipv4"].partition("/")[0] for each in lease(name).get("reservation", {}).get("leases", ())}
    asking = {"DELAY", "PROBE", "INCOMPLETE"}
    return not any(own & {each["dst"]} and asking & {*each["state"]} for each in json.loads(ok("ip", "-json", "neigh")))


def runs(unit: str) -> set[str]:
    """The invocations of a unit that have a line of its guest in the journal."""
    sync_journal()
    fields = ("--output=json", "--output-fields=_SYSTEMD_INVOCATION_ID")
    lines = ok("journalctl", "--quiet", *fields, "_TRANSPORT=stdout", "PRIORITY=6", f"_SYSTEMD_UNIT={unit}")
    found = {json.loads(line).get("_SYSTEMD_INVOCATION_ID", "") for line in lines.splitlines()}
    return found - {""}


def echoes(port: int) -> bool:
    """Whether a guest answers at a port of the host."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(0.5)
        s.sendto(b"there?", (NODE_ADDRESS, port))
        with suppress(OSError):
            return s.recv(64) == b"there?"
    return False
