"""Requests of the first machine about the others, over a Unix socket: JSON each way, one request a connection.

    {"do": "run", "machine": "client1", "argv": ["true"], "seconds": 60}   {"status": 0, "stdout": "", "stderr": ""}
    {"do": "kill", "machine": "client1"}, and boot, unplug, plug           {}
    what cannot be done                                                    {"error": "no machine “x” is running; …"}

Everything happens in one thread: the kernel ends a machine together with the thread that started it.
"""

import json
import select
import socket
from contextlib import suppress
from typing import Any

from .errors import MachineError, MachineTimeoutError
from .machines import Machines

_REQUEST_SECONDS = 10  # from the connection to the end of the request


class Control:
    def __init__(self, server: socket.socket, machines: Machines) -> None:
        self._server = server
        self._machines = machines

    def serve_until(self, other: socket.socket, seconds: float | None) -> None:
        """Answer requests until *other* can be read or *seconds* are over; None is without end."""
        while self._server in (ready := select.select([other, self._server], [], [], seconds)[0]):
            with self._server.accept()[0] as connection:
                connection.settimeout(_REQUEST_SECONDS)
                answer = self._answer(_request(connection))
                with suppress(OSError):  # the one that requested may have ended
                    connection.sendall(json.dumps(answer).encode())
            if other in ready:
                return

    def _answer(self, request: Any) -> dict[str, Any]:
        try:
            match request:
                case {"do": "run", "machine": name, "argv": argv, "seconds": seconds}:
                    return self._machines.run(name, argv, seconds)
                case {"do": "kill" | "boot" | "unplug" | "plug" as verb, "machine": name}:
                    getattr(self._machines, verb)(name)
                    return {}
                case _:
                    return {"error": f"{request} is no request: do is one of run, kill, boot, unplug, plug"}
        except MachineTimeoutError:  # what comes from that machine later would be taken for the next answer
            raise
        except MachineError as error:
            return {"error": str(error)}


def _request(connection: socket.socket) -> Any:
    """Read to the end of what the other side sends; return None for what is not JSON."""
    try:
        with connection.makefile("rb") as stream:
            return json.loads(stream.read())
    except (OSError, ValueError):
        return None
