"""The claims of tasks, as symbolic links: the target is the claim, so that one system call makes it, and one reads it.

    /run/solo5/users/.claims/TASK     what the task takes of the node
    /run/solo5/users/.claims.lock     locked while a claim is checked and made

A claim counts while its task has a user, whose file exists before the claim is made: what frees the user, frees what
it has claimed. Only root can open the directory.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from solo5_systemd.locks import closing, lock_file
from solo5_systemd.settings.limits import OPERATOR, Claim, Resource, Scope, Totals

TASKS = Path("/run/solo5/users")
"""A file for each task that has a user."""


class Claims:
    """The claims of tasks. A process keeps what it has read: a start reads the claims that are new since the last one.

    Args:
        tasks: the directory with a file of each task that has a user.
    """

    def __init__(self, tasks: Path) -> None:
        self._tasks = tasks
        self._directory = tasks / ".claims"
        self._lock = tasks / ".claims.lock"
        self._reading = threading.Lock()
        self._inodes: dict[str, int] = {}
        self._claims: dict[str, Claim] = {}
        self._totals = Totals()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep others from making claims during the block.

        Raises:
            LockedError: another process makes one.
            OSError: the directory cannot be used.
        """
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with closing(lock_file(self._lock, timeout_s=0.0)):
            yield

    @contextmanager
    def others(self, task: str, *, prune: bool = False) -> Iterator[Totals]:
        """Yield the sums of the claims of all tasks but one.

        Args:
            task: the one.
            prune: remove those of tasks without a user; within `exclusive` only.
        """
        with self._reading:
            self._read(prune=prune)
            own = self._claims.get(task, Claim())
            self._totals.add(own, -1)
            try:
                yield self._totals
            finally:
                self._totals.add(own)

    def _read(self, *, prune: bool) -> None:
        found: dict[str, int] = {}
        with suppress(FileNotFoundError), os.scandir(self._directory) as entries:
            found = {entry.name: entry.inode() for entry in entries}
        # Later: a claim is made after its user.
        users = frozenset(os.listdir(self._tasks)) if found else frozenset()  # noqa: PTH208 - names alone
        for name in found.keys() - users:
            del found[name]
            if prune:
                (self._directory / name).unlink(missing_ok=True)
        for name, _ in self._inodes.items() - found.items():
            self._forget(name)
        for name, inode in found.items() - self._inodes.items():
            with suppress(OSError, ValueError, TypeError):  # removed just now, or damaged
                self._claims[name] = claim = Claim.from_text(os.readlink(f"{self._directory}/{name}"))  # noqa: PTH115
                self._totals.add(claim)
            self._inodes[name] = inode

    def _forget(self, name: str) -> None:
        self._inodes.pop(name, None)
        if claim := self._claims.pop(name, None):
            self._totals.add(claim, -1)

    def make(self, task: str, claim: Claim) -> None:
        """Make a task's claim, in place of an earlier one; within `exclusive`."""
        self.end(task)
        (self._directory / task).symlink_to(claim.to_text())

    def end(self, task: str) -> None:
        """Remove a task's claim. Idempotent."""
        with self._reading:
            self._forget(task)  # a later claim may have the same inode
        (self._directory / task).unlink(missing_ok=True)


def claimed_copies(tasks: Path = TASKS) -> int:
    """Return the bytes that the private copies of all tasks can take."""
    with Claims(tasks).others("") as totals:
        return totals.of(OPERATOR, Scope.NODE).get(Resource.COPIES, 0)
