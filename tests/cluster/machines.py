"""The other machines of this test, through the socket on which `tests/machine/boot --machines` serves requests."""

import json
import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.machine.conftest import PATIENCE

CONTROL = "/run/host-control"
_ALLOC = r"\bNOMAD_ALLOC_ID=([0-9a-f-]{36})"


def request(do: str, machine: str, **details: object) -> dict[str, Any]:
    """Send one request and return its answer."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(CONTROL)
        connection.sendall(json.dumps({"do": do, "machine": machine, **details}).encode())
        connection.shutdown(socket.SHUT_WR)
        with connection.makefile("rb") as stream:
            answer = json.loads(stream.read())
    assert isinstance(answer, dict)
    assert "error" not in answer, f"{do} {machine}: {answer['error']}"
    return answer


@dataclass(frozen=True)
class Peer:
    """Another machine. Requests reach it without the network, so a machine that is cut off can be inspected."""

    name: str

    def sh(self, *argv: str, seconds: float = PATIENCE) -> subprocess.CompletedProcess[str]:
        done = request("run", self.name, argv=argv, seconds=seconds)
        return subprocess.CompletedProcess(argv, done["status"], done["stdout"], done["stderr"])

    def ok(self, *argv: str, seconds: float = PATIENCE) -> str:
        """Return the output of a command that must succeed."""
        done = self.sh(*argv, seconds=seconds)
        assert done.returncode == 0, f"{self.name}: {' '.join(argv)} → {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def write(self, path: str, text: str) -> None:
        self.ok("sh", "-euc", 'printf %s "$2" >"$1"', "sh", path, text)

    def kill(self) -> None:
        """Power the machine off without a shutdown; its disk stays."""
        request("kill", self.name)

    def boot(self) -> None:
        request("boot", self.name)

    @contextmanager
    def unplugged(self) -> Iterator[None]:
        """Drop every frame between this machine and the others while the block runs."""
        request("unplug", self.name)
        try:
            yield
        finally:
            request("plug", self.name)

    def runs(self) -> dict[str, str]:
        """Return the invocation ID of each allocation's unit on this machine."""
        shown = self.ok("systemctl", "show", "--property=InvocationID,LogExtraFields", "solo5-task-*.service")
        units = [dict(line.split("=", 1) for line in unit.splitlines()) for unit in shown.strip().split("\n\n") if unit]
        found = [(re.search(_ALLOC, unit["LogExtraFields"]), unit["InvocationID"]) for unit in units]
        return {alloc[1]: run for alloc, run in found if alloc and run}

    def boot_id(self) -> str:
        return self.ok("cat", "/proc/sys/kernel/random/boot_id").strip()

    def left(self) -> dict[str, object]:
        """Return what is left of tasks there."""
        script = "import json; from tests.machine.conftest import Machine; print(json.dumps(Machine().snapshot()))"
        found = json.loads(self.ok("env", "PYTHONPATH=/srv", "python3", "-c", script))
        assert isinstance(found, dict)
        return found
