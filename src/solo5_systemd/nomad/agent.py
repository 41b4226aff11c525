"""The agent that has launched this plugin: a process that outlives its plugins, and knows them apart from others'."""

import os
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
