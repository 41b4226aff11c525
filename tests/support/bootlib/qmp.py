"""As much of QEMU's machine protocol as taking a snapshot needs."""

import json
import socket
import time
from pathlib import Path
from typing import Any

from .errors import MachineError


class Qmp:
    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(30)
        self._socket.connect(str(path))
        self._lines = self._socket.makefile("rb")
        self._lines.readline()  # the greeting
        self.execute("qmp_capabilities")

    def execute(self, command: str, **arguments: Any) -> Any:
        """Run *command* and return what it answers; events that come before the answer are dropped."""
        self._socket.sendall(json.dumps({"execute": command, "arguments": arguments}).encode())
        while line := self._lines.readline():
            answer = json.loads(line)
            if "return" in answer:
                return answer["return"]
            if "error" in answer:
                raise MachineError(f"QEMU refused {command}: {answer['error']['desc']}")
        raise MachineError(f"QEMU ended during {command}")

    def save(self, path: str) -> None:
        """Write memory and devices to *path*, a path as QEMU sees it, and end the machine.

        It is not stopped first: the snapshot would remember that, and wake up stopped.
        """
        self.execute("migrate-set-parameters", **{"max-bandwidth": 1 << 40})
        self.execute("migrate", uri=f"file:{path}")
        while (status := self.execute("query-migrate").get("status")) not in ("completed", "failed"):
            time.sleep(0.1)
        if status == "failed":
            raise MachineError(f"QEMU could not save the machine: {self.execute('query-migrate')}")
        self.execute("quit")
