"""The other machines of this test, through the socket on which `tests/machine/boot --machines` serves requests."""

import json
import re
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.machine.conftest import GUESTS, PATIENCE

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


def web(port: int, *lines: str, image: object = f"{GUESTS}/net.spt") -> str:
    """Return the declaration of a web server that starts at each boot, with further lines."""
    first = ("[Unikernel]", f"Image={image}", "Memory=24M", f"Publish={port}:80", "Argument={mirage}")
    return "\n".join((*first, *lines, "[Install]", "WantedBy=multi-user.target", ""))


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

    @contextmanager
    def declared(self, texts: Mapping[str, str], *files: str) -> Iterator[None]:
        """Declare tasks and enable them; at the end nothing is left of them, nor of these files."""
        for name, text in texts.items():
            self.write(f"/etc/solo5/{name}.unikernel", text)
        self.ok("systemctl", "daemon-reload")
        self.ok("systemctl", "enable", *texts)
        try:
            yield
        finally:
            self.sh("systemctl", "disable", *texts)
            self.sh("systemctl", "stop", *texts, seconds=2 * PATIENCE)
            self.sh("solo5ctl", "rm", "--force", *texts, seconds=2 * PATIENCE)
            kept = ("/var/lib/solo5/declared", "/var/lib/solo5/waiting")
            self.sh("rm", "-rf", *(f"/etc/solo5/{name}.unikernel" for name in texts), *kept, *files)
            self.sh("systemctl", "daemon-reload")
            self.sh("systemctl", "reset-failed")

    def nics(self, *names: str) -> dict[str, object]:
        """Return addresses, MACs and taps of tasks."""
        return {each["name"]: each["nics"] for each in json.loads(self.ok("solo5ctl", "inspect", "--json", *names))}

    def dormant(self) -> dict[str, object]:
        """Return the NICs of the tasks that wait; none, while nobody answers."""
        listed = json.loads(self.sh("solo5ctl", "ps", "--json").stdout or "[]")
        return {each["name"]: each["nics"] for each in listed if each["phase"] == "dormant"}

    def state(self, unit: str) -> str:
        return self.sh("systemctl", "is-active", unit).stdout.strip()

    def status(self, unit: str) -> str:
        return self.sh("systemctl", "status", "--no-pager", "--full", unit).stdout

    def boot_id(self) -> str:
        return self.ok("cat", "/proc/sys/kernel/random/boot_id").strip()

    def left(self) -> dict[str, object]:
        """Return what is left of tasks there."""
        script = "import json; from tests.machine.conftest import Machine; print(json.dumps(Machine().snapshot()))"
        found = json.loads(self.ok("env", "PYTHONPATH=/srv", "python3", "-c", script))
        assert isinstance(found, dict)
        return found
