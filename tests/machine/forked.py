"""`solo5ctl` as a process that is forked from one which has imported the package already.

A busy machine takes longer to start Python and to import the package than to execute most verbs, and the tests execute
thousands. Each of these processes calls the console script's entry point with its own words, environment, working
directory and standard streams; the server executes no verb itself, so that no process finds what another has cached.
`/usr/bin/solo5ctl` is the program itself, which the tests execute on Debian 12.
"""

import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from tests.support.forked import begun, serve

OF_OTHER_PROGRAMS = ("goplugin", "host_volume", "networkd", "nomad", "pid1", "relay")
"""Packages that no verb imports, or few."""


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
    return begun("tests.machine.forked", Path(__file__).parents[2])


def _execute(words: list[str], environment: dict[str, str], directory: str, *streams: int) -> NoReturn:
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
    serve(lambda package: package not in OF_OTHER_PROGRAMS, _execute, 4)
