"""Hold every thread of a process in a ptrace-stop until its end: no signal but SIGKILL has an effect on it.

The kernel tells a parent of the end of a traced child when its tracer has waited for it.
"""

import ctypes
import os
import sys
from contextlib import suppress
from pathlib import Path

PTRACE_SEIZE, PTRACE_INTERRUPT = 0x4206, 0x4207
WALL = 0x40000000

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long


def ptrace(request: int, thread: int) -> None:
    if libc.ptrace(request, thread, None, None) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


for task in Path("/proc", sys.argv[1], "task").iterdir():
    thread = int(task.name)
    ptrace(PTRACE_SEIZE, thread)
    ptrace(PTRACE_INTERRUPT, thread)
    os.waitpid(thread, WALL)
print("held", flush=True)
with suppress(ChildProcessError):
    while True:
        os.waitpid(-1, WALL)
