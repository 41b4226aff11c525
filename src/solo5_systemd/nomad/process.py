"""The agent that has launched this plugin: a process that outlives its plugins, and knows them apart from others'."""

import os
import resource
from functools import cache
from pathlib import Path

PROC = Path("/proc")


@cache
def agent_id() -> str:
    """The parent process, by its id and the time of its start (proc(5), stat); empty where it has died already."""
    pid = os.getppid()
    try:
        fields = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return f"{pid}.{fields[19]}" if pid > 1 else ""


# How many files the plugin may have open: as many as it can, since statistics hold five for each task.
#
# The soft limit is there for users of select(2) (systemd.exec(5), LimitNOFILE=). What the plugin executes may be one.

GIVEN = resource.getrlimit(resource.RLIMIT_NOFILE)
"""Soft and hard limit that this process was started with."""


def raise_limit() -> None:
    """Have the soft limit be the hard one."""
    hard = GIVEN[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def restore_limit(pid: int) -> None:
    """Give a child the limits that this process was given.

    Raises:
        ProcessLookupError: it has ended.
    """
    resource.prlimit(pid, resource.RLIMIT_NOFILE, GIVEN)
