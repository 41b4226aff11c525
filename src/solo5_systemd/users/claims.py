"""The claims of tasks, as symbolic links: the target is the claim, so that one system call makes it, and one reads it.

    /run/solo5/users/.claims/TASK     what the task takes of the node
    /run/solo5/users/.claims.lock     locked while a claim is checked and made

A claim counts while its task has a user, whose file exists before the claim is made: what frees the user, frees what
it has claimed. Only root can open the directory.
"""

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from solo5_systemd.settings.limits import Claim, Resource, used

TASKS = Path("/run/solo5/users")
"""A file for each task that has a user."""


class Claims:
    """The claims of tasks.

    Args:
        tasks: the directory with a file of each task that has a user.
    """

    def __init__(self, tasks: Path) -> None:
        self._tasks = tasks
        self._directory = tasks / ".claims"
        self._lock = tasks / ".claims.lock"

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep others from making claims during the block.

        Raises:
            BlockingIOError: another process makes one.
            OSError: the directory cannot be used.
        """
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        finally:
            os.close(descriptor)

    def others(self, task: str, *, prune: bool = False) -> Sequence[Claim]:
        """Return the claims of all tasks but one.

        Args:
            task: the one.
            prune: remove those of tasks without a user; within `exclusive` only.
        """
        found = []
        with suppress(FileNotFoundError):
            names = os.listdir(self._directory)  # noqa: PTH208 - of names alone: there may be thousands
            users = frozenset(os.listdir(self._tasks))  # noqa: PTH208 - later: a claim is made after its user
            for name in names:
                if name not in users:
                    if prune:
                        (self._directory / name).unlink(missing_ok=True)
                elif name != task:
                    with suppress(OSError, ValueError, TypeError):  # removed just now, or damaged
                        found.append(Claim.from_text(os.readlink(f"{self._directory}/{name}")))  # noqa: PTH115
        return found

    def make(self, task: str, claim: Claim) -> None:
        """Make a task's claim, in place of an earlier one; within `exclusive`."""
        self.end(task)
        (self._directory / task).symlink_to(claim.to_text())

    def end(self, task: str) -> None:
        """Remove a task's claim. Idempotent."""
        (self._directory / task).unlink(missing_ok=True)


def claimed_copies(tasks: Path = TASKS) -> int:
    """Return the bytes that the private copies of all tasks can take."""
    return used(Claims(tasks).others("")).get(Resource.COPIES, 0)
