"""What the machine has on record about a task that is not as it must be: for the report of a history that failed."""

from collections.abc import Sequence
from contextlib import suppress

from tests.machine.chaos.model import Door, Task, World
from tests.machine.conftest import sh
from tests.machine.nomad import jobs
from tests.machine.nomad.agent import UNIT

WINDOW = "-5min"
"""How much of the journal is printed: the operations that were performed together, and the wait after them."""

_SERVICES = (UNIT, "solo5-relay.service", "solo5-networkd.service", "dbus.service", "systemd-journald.service")


def evidence(world: World, wrong: Sequence[str]) -> list[str]:
    """Lines about every task that a complaint names: Nomad's events, and the journal of all that serves it."""
    named = [task for task in world.values() if any(line.startswith(f"{task.name}: ") for line in wrong)]
    return [line for task in named for line in _of(task)]


def _of(task: Task) -> list[str]:
    words, found = [task.name], []
    if task.door is Door.NOMAD:
        with suppress(AssertionError, OSError, KeyError):  # the agent is away
            for alloc in jobs.allocations(task.name):
                words.append(alloc["ID"])
                found += [f"{alloc['ID']}: {event}" for event in alloc["ID"].events()]
    return [f"--- {task.name}", *found, *_journal(words)]


def _journal(words: Sequence[str]) -> list[str]:
    """The lines with one of the words in them, and what systemd has about our services."""
    units = (f"--unit={unit}" for unit in _SERVICES)
    lines = sh("journalctl", "--quiet", "--no-pager", "--output=short-precise", f"--since={WINDOW}").stdout.splitlines()
    served = sh("journalctl", "--quiet", "--no-pager", "--output=short-precise", f"--since={WINDOW}", *units).stdout
    about = {line for line in served.splitlines() if " systemd[1]: " in line or "solo5" in line}
    return [line for line in lines if line in about or any(word in line for word in words)]
