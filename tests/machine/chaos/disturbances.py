"""Disturbances, as an accident performs them."""

import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress

from tests.machine.chaos.model import PREFIX, Disturbance
from tests.machine.conftest import eventually, sh, systemctl, unit_property
from tests.machine.nomad import jobs
from tests.machine.nomad.agent import Agent, api, plugins


def disturb(disturbance: Disturbance, agent: Agent, kill_client: Callable[[], None]) -> None:
    """Have an accident, and wait for what somebody else must start again before anything can be asked of it.

    `kill_client` kills the `solo5ctl` of an act.
    """
    match disturbance:
        case Disturbance.CLIENT:
            kill_client()
        case Disturbance.PLUGIN:
            _kill_plugins()
        case Disturbance.RELAY | Disturbance.NETWORKD:
            _kill_service(disturbance.name.lower())
        case Disturbance.PREPARATION:
            _kill_all(r"solo5_systemd\.pid1\.(prepare|generator)")
        case Disturbance.UPDATER:
            _kill_all(r"solo5_systemd\.pid1\.update")
        case Disturbance.ALL:
            _kill_service("relay")
            _kill_service("networkd")
            _kill_plugins()
        case Disturbance.AGENT:
            eventually(_nothing_is_being_stopped, "Nomad has ended what was stopped")
            agent.stop()
            agent.start()
        case Disturbance.AGENT_KILLED:
            agent.kill()
            agent.start()
        case _:
            for command in _COMMANDS[disturbance]:
                done = sh(*command.split())
                assert done.returncode == 0 or not command.startswith("systemctl"), f"{command}: {done.stderr}"
            systemctl("show", "--property=Version")


# PID 1 refuses a sixth start within ten seconds, and closes the bus's socket: reset-failed has it count anew
_COMMANDS: Mapping[Disturbance, tuple[str, ...]] = {
    Disturbance.FLUSH: ("nft delete table ip solo5", "nft delete table bridge solo5"),
    Disturbance.BUS: ("systemctl reset-failed dbus", "systemctl restart dbus"),
    Disturbance.JOURNALD: ("systemctl reset-failed systemd-journald", "systemctl restart systemd-journald"),
    Disturbance.REEXEC: ("systemctl daemon-reexec",),
    Disturbance.GC: ("solo5ctl gc",),
    Disturbance.RELOAD: ("systemctl daemon-reload",),
}


def _kill_service(name: str) -> None:
    """kill -9, where it runs: it is there only while it is needed."""
    pid = int(unit_property(f"solo5-{name}.service", "MainPID"))
    if pid:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _kill_all(pattern: str) -> None:
    """kill -9 of generators, and of preparations and what clears up after them; or of updates, and of their ends."""
    for pid in sh("pgrep", "-f", pattern).stdout.split():
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


def _nothing_is_being_stopped() -> bool:
    """An agent that ends while it stops a task destroys the task, and tells of no end (docs/survival.md)."""
    stopped = (job["ID"] for job in api(f"/v1/jobs?prefix={PREFIX}") if job["Stop"])
    return all(alloc["ClientStatus"] in jobs.TERMINAL for job in stopped for alloc in jobs.allocations(job))


TAKEN_UP = 5
"""Seconds until a new plugin has taken up its tasks. Nomad ends those whose plugin dies before (docs/survival.md)."""


def _age(pid: int) -> int:
    """In seconds; none where it has ended."""
    return int(sh("ps", "-o", "etimes=", "-p", str(pid)).stdout or TAKEN_UP)


def _kill_plugins() -> None:
    eventually(lambda: all(_age(pid) >= TAKEN_UP for pid in plugins()), "the plugin has taken up its tasks")
    for pid in plugins():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
