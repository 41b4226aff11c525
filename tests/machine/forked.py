"""`solo5ctl` as a process that is forked from one which has imported the package already.

A busy machine takes longer to start Python and to import the package than to execute most verbs, and the tests execute
thousands. Each of these processes calls the console script's entry point with its own words, environment, working
directory and standard streams; the server executes no verb itself, so that no process finds what another has cached.
`/usr/bin/solo5ctl` is the program itself, which the tests execute on Debian 12.
"""

import atexit
import functools
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import NoReturn

OF_OTHER_PROGRAMS = ("goplugin", "host_volume", "networkd", "nomad", "pid1", "relay")
"""Packages that no verb imports, or few."""

LARGEST = 1 << 17
"""Bytes of a request: the words, the environment and the directory."""


def solo5ctl(words: Sequence[str], timeout: float) -> "subprocess.CompletedProcess[str]":
    """Execute a verb to its end, with an empty input.

    Raises:
        subprocess.TimeoutExpired: it was killed after so many seconds.
    """
    reader, writer = os.pipe()
    with (
        open(os.devnull, "rb") as nothing,  # noqa: PTH123 - of three descriptors
        os.fdopen(os.memfd_create("stdout"), errors="replace") as out,
        os.fdopen(os.memfd_create("stderr"), errors="replace") as err,
        os.fdopen(reader) as answer,
    ):
        request = json.dumps([words, dict(os.environ), os.getcwd()]).encode()  # noqa: PTH109
        socket.send_fds(_server(), [request], [nothing.fileno(), out.fileno(), err.fileno(), writer])
        os.close(writer)
        process = int(answer.readline())
        if not select.select([answer], [], [], timeout)[0]:
            os.kill(process, signal.SIGKILL)
            raise subprocess.TimeoutExpired(["solo5ctl", *words], timeout)
        status = int(answer.readline())
        for stream in (out, err):
            stream.seek(0)
        return subprocess.CompletedProcess(["solo5ctl", *words], status, out.read(), err.read())


@functools.cache
def _server() -> socket.socket:
    """Start the server, which ends when the last end of its socket is closed: with this process, at the latest."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server = subprocess.Popen([sys.executable, "-I", __file__, str(its.fileno())], pass_fds=[its.fileno()])
    its.close()

    def end() -> None:
        ours.close()
        server.wait()

    atexit.register(end)
    return ours


def _serve(control: socket.socket) -> None:
    import solo5_systemd

    for module in pkgutil.walk_packages(solo5_systemd.__path__, "solo5_systemd."):
        if module.name.split(".")[1] not in OF_OTHER_PROGRAMS and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        request, descriptors, _, _ = socket.recv_fds(control, LARGEST, 4)
        if not request:
            return
        if os.fork() == 0:
            control.close()
            _keep(json.loads(request), descriptors)
        for each in descriptors:
            os.close(each)


def _keep(request: tuple[list[str], dict[str, str], str], descriptors: list[int]) -> NoReturn:
    """Fork the process of the verb; write its number and, when it has ended, its exit status."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *streams, answer = descriptors
    process = os.fork()
    if process == 0:
        os.close(answer)
        _execute(*request, streams)
    os.write(answer, b"%d\n" % process)
    _, status = os.waitpid(process, 0)
    os.write(answer, b"%d\n" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def _execute(words: list[str], environment: dict[str, str], directory: str, streams: list[int]) -> NoReturn:
    from solo5_systemd.cli.main import main

    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["/usr/bin/solo5ctl", *words]
    sys.exit(main())


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
