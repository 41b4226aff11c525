"""A server that forks processes with the project's modules imported, each for a request with words and descriptors."""

import atexit
import importlib
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

LARGEST = 1 << 17
"""Bytes of a request: words, environment and the like."""


def begun(module: str, *paths: Path) -> socket.socket:
    """Start a server, which ends when the last end of its socket is closed: with this process, at the latest."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {**os.environ, "PYTHONPATH": ":".join(map(str, paths))}
    command = [sys.executable, "-m", module, str(its.fileno())]
    server = subprocess.Popen(command, env=environment, pass_fds=[its.fileno()])
    its.close()

    def end() -> None:
        ours.close()
        server.wait()

    atexit.register(end)
    return ours


def serve(is_wanted: Callable[[str], bool], execute: Callable[..., NoReturn], descriptors: int) -> None:
    """Be the server: import these packages, and execute each request in a process of its own.

    The last descriptor of a request gets the number of its process and, when that has ended, its exit status.
    """
    import solo5_systemd

    control = socket.socket(fileno=int(sys.argv[1]))
    for module in pkgutil.walk_packages(solo5_systemd.__path__, "solo5_systemd."):
        if is_wanted(module.name.split(".")[1]) and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        request, given, _, _ = socket.recv_fds(control, LARGEST, descriptors)
        if not request:
            return
        if os.fork() == 0:
            control.close()
            _keep(execute, json.loads(request), *given)
        for each in given:
            os.close(each)


def _keep(execute: Callable[..., NoReturn], request: list[Any], *descriptors: int) -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *others, answer = descriptors
    process = os.fork()
    if process == 0:
        os.close(answer)
        execute(*request, *others)
    os.write(answer, b"%d\n" % process)
    _, status = os.waitpid(process, 0)
    os.write(answer, b"%d\n" % os.waitstatus_to_exitcode(status))
    os._exit(0)
