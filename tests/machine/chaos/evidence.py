"""What the machine has on record about a task that is not as it must be: for the report of a history that failed."""

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress

from tests.machine.chaos.model import Door, Task
from tests.machine.conftest import sh
from tests.machine.nomad import jobs
from tests.machine.nomad.agent import UNIT

WINDOW = "-5min"
"""How much of the journal is printed: the operations that were performed together, and the wait after them."""

_SERVICES = (UNIT, "solo5-relay.service", "solo5-networkd.service", "dbus.service", "systemd-journald.service")


_ALLOCATION = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")


def evidence(tasks: Iterable[Task], wrong: Sequence[str]) -> list[str]:
    """Lines about every task that a complaint names: Nomad's events, and the journal of all that serves it."""
    complaints = "\n".join(wrong)
    named = {task.name: task for task in tasks if re.search(rf"\b{re.escape(task.name)}(?![\w@-])", complaints)}
    return [line for task in named.values() for line in _of(task, _ALLOCATION.findall(complaints))]


def _of(task: Task, named_allocations: Sequence[str]) -> list[str]:
    words, found = [task.name, *named_allocations], []
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
