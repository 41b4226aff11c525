"""The registry of task users: one file, which is replaced under one lock.

    /run/solo5/users            only root can open it; locked while the registry is replaced
    /run/solo5/users/registry   the uid that was allocated last; then a line for each task: its name, uid and claim
    /run/solo5/users/starts     empty; a byte of it for each task is locked while the task is started or removed

A task's line is written before anything belongs to its user, and removed when nothing does any more. So what a killed
process leaves is found by that line. After a boot there is no registry; `storage.given_disks` has what outlives a boot.
"""

import os
from collections.abc import Set
from contextlib import AbstractContextManager, suppress
from hashlib import blake2b
from pathlib import Path

from solo5_systemd.base.atomic_file import replace_file
from solo5_systemd.base.event_loop import is_event_loop
from solo5_systemd.base.locks import closing, lock_directory, try_lock_byte
from solo5_systemd.base.names import TaskName
from solo5_systemd.settings.node_limits import OPERATOR, Claim, Node, Resource, Scope, Totals

DIRECTORY = Path("/run/solo5/users")

LOCK_TIMEOUT_S = 60.0
"""How long one waits for others that replace the registry. Each takes less than a millisecond, and far longer at the
boot of a slow machine with many tasks, whose processes wait for a processor while they have the lock."""


class Registry:
    """The registry. A process keeps the sums of the claims that it has read, and parses only those that are new."""

    def __init__(self) -> None:
        self._counted: Set[str] = frozenset()
        self._totals = Totals()

    def exists(self) -> bool:
        """Return whether a user was allocated since the boot."""
        return (DIRECTORY / "registry").exists()

    def lock_task(self, task: TaskName) -> int | None:
        """Keep starts and removals of a task out until the returned descriptor is closed; None: another one has it."""
        DIRECTORY.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(DIRECTORY / "starts", flags, 0o600)
        if try_lock_byte(descriptor, int.from_bytes(blake2b(task.encode(), digest_size=7).digest())):
            return descriptor
        os.close(descriptor)
        return None

    def last(self) -> int | None:
        """Return the uid that was allocated last; None: none since the boot."""
        last = self._read().partition("\n")[0]
        return int(last) if last else None

    def tasks(self) -> list[TaskName]:
        """Return the tasks that have a user."""
        return sorted(TaskName(line.partition(" ")[0]) for line in _lines(self._read()))

    def uid(self, task: TaskName) -> int | None:
        """Return the uid of a task; None: it has no user."""
        uid = _uid(_line(self._read(), task))
        return int(uid) if uid else None

    def add(self, task: TaskName, uid: int) -> None:
        """Add or replace a task's line, which has no claim yet."""
        with self._locked():
            _, newline, lines = self._read().partition("\n")
            self._write(f"{uid}{newline}{lines}", task, str(uid))

    def remove(self, task: TaskName) -> None:
        """Remove a task's line, if there is one."""
        if _line(self._read(), task):  # no lock where there is nothing to remove
            with self._locked():
                self._write(self._read(), task, "")

    def claim(self, task: TaskName, claim: Claim, node: Node) -> None:
        """Check what a task takes in addition to all others, and record it in its line; raises as `Node.check`."""
        with self._locked():
            text = self._read()
            node.check(claim, lambda: self._others(task, text), f"task {task}")
            self._write(text, task, f"{_uid(_line(text, task))} {claim.to_text()}")

    def check_claim(self, task: TaskName, claim: Claim, node: Node) -> None:
        """Check what a task would take now, and record nothing; raises as `Node.check`."""
        node.check(claim, lambda: self._others(task, self._read()), f"task {task}")

    def end_claim(self, task: TaskName) -> None:
        """Remove the claim of a task that keeps its user; without effect if it has none."""
        if " " in _line(self._read(), task):
            with self._locked():
                text = self._read()
                self._write(text, task, _uid(_line(text, task)))

    def copies(self) -> int:
        """Return the bytes that the private copies of all tasks can take."""
        return self._sums(_lines(self._read())).of(OPERATOR, Scope.NODE).get(Resource.COPIES, 0)

    def _others(self, task: TaskName, text: str) -> Totals:
        return self._sums(_lines(_without(text, task)))

    def _sums(self, lines: Set[str]) -> Totals:
        """Return the sums of the claims in these lines: those of the last call, with the difference to its lines."""
        for changed, sign in ((self._counted - lines, -1), (lines - self._counted, 1)):
            for line in changed:
                with suppress(ValueError, TypeError):  # no claim, or a damaged one
                    self._totals.add(Claim.from_text(line.split(" ", 2)[-1]), sign)
        self._counted = lines
        return self._totals

    def _read(self) -> str:
        with suppress(FileNotFoundError):
            return (DIRECTORY / "registry").read_bytes().decode()
        return "\n"

    def _locked(self) -> AbstractContextManager[int]:
        DIRECTORY.mkdir(mode=0o700, parents=True, exist_ok=True)
        return closing(lock_directory(DIRECTORY, timeout_s=0.0 if is_event_loop() else LOCK_TIMEOUT_S))

    def _write(self, text: str, task: TaskName, line: str) -> None:
        """Replace the registry by a text with this line of a task; within `_locked`."""
        replace_file(DIRECTORY / "registry", _without(text, task) + (f"{task} {line}\n" if line else ""))


def _lines(text: str) -> Set[str]:
    return frozenset(text.splitlines()[1:])


def _line(text: str, task: TaskName) -> str:
    """Return a task's line without its name; empty: it has none."""
    return text.partition(f"\n{task} ")[2].partition("\n")[0]


def _without(text: str, task: TaskName) -> str:
    before, found, after = text.partition(f"\n{task} ")
    return f"{before}\n{after.partition(chr(10))[2]}" if found else text


def _uid(line: str) -> str:
    return line.partition(" ")[0]
