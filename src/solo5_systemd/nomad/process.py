"""The plugin's process: its parent, the agent, and the limits of its children."""

import os
import resource
from contextlib import suppress
from ctypes import CDLL
from functools import cache
from pathlib import Path

PROC = Path("/proc")


@cache
def agent_id() -> str:
    """Return the parent's process ID and start time (proc(5), stat); empty if it has died already.

    The agent outlives its plugins. Units carry this value, by which a later plugin of the same agent finds them.
    """
    pid = os.getppid()
    try:
        fields = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return f"{pid}.{fields[19]}" if pid > 1 else ""


M_ARENA_MAX = -8
"""mallopt(3)."""


def use_one_arena() -> None:
    """Let all threads allocate memory from one arena, where the C library is glibc.

    With an arena for each, the threads for file I/O keep several MB that the others cannot use.
    """
    with suppress(AttributeError):
        CDLL(None).mallopt(M_ARENA_MAX, 1)


INITIAL_NOFILE = resource.getrlimit(resource.RLIMIT_NOFILE)
"""The soft and hard RLIMIT_NOFILE that this process was started with."""


def raise_nofile_limit() -> None:
    """Raise the soft RLIMIT_NOFILE to the hard one: statistics hold five file descriptors for each task."""
    hard = INITIAL_NOFILE[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def restore_limits(pid: int) -> None:
    """Set the limits of a child as systemd sets those of a service (systemd.exec(5)).

    * RLIMIT_NOFILE as it was: the child may use select(2) (LimitNOFILE=).
    * No core file: it would contain the guest's memory.
    * No OOMScoreAdjust=: many units of the agent have -1000, with which the kernel finds no process to kill when a task
      reaches its MemoryMax=.

    Raises:
        ProcessLookupError: the child has ended.
    """
    resource.prlimit(pid, resource.RLIMIT_NOFILE, INITIAL_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):
        (PROC / str(pid) / "oom_score_adj").write_text("0", encoding="ascii")
