"""The plugin's process: its parent, the agent, and its limit of open files."""

import os
import resource
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


INITIAL_NOFILE = resource.getrlimit(resource.RLIMIT_NOFILE)
"""The soft and hard RLIMIT_NOFILE that this process was started with."""


def raise_nofile_limit() -> None:
    """Raise the soft RLIMIT_NOFILE to the hard one: statistics hold five file descriptors for each task."""
    hard = INITIAL_NOFILE[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def restore_nofile_limit(pid: int) -> None:
    """Set the initial RLIMIT_NOFILE in a child, which may use select(2) (systemd.exec(5), LimitNOFILE=).

    Raises:
        ProcessLookupError: the child has ended.
    """
    resource.prlimit(pid, resource.RLIMIT_NOFILE, INITIAL_NOFILE)
