"""Run a program so that nothing of it can outlive it: no process, no mount.

`unshare` gives it a mount and a PID namespace of its own. The first process of a PID namespace takes every other with
it, and mounts of a mount namespace end with its last process; so a clean machine needs no clean-up, even after SIGKILL.
"""

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

from .errors import MachineError

UNDER_US = ("setpriv", "--pdeathsig", "KILL")  # a command that ends when we end, however that happens
_LAST_SECONDS = 10  # the kernel's to tear a namespace down
_NAMESPACES = ("unshare", "--mount", "--propagation=private", "--pid", "--fork", "--kill-child=KILL", "--mount-proc")


def command(script: str, *arguments: str | Path) -> list[str]:
    """Return the argv that runs the shell *script* enclosed, with *arguments* as ``$1``, ``$2`` …"""
    return [*_NAMESPACES, "sh", "-euc", script, "sh", *map(str, arguments)]


def run(script: str, *arguments: str | Path, doing: str) -> None:
    """Run *script* enclosed and wait for it.

    Raises:
        MachineError: it failed; the message says what it was *doing* and ends with the script's last lines.
    """
    done = subprocess.run(
        [*UNDER_US, *command(script, *arguments)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    if done.returncode:
        tail = "\n".join(done.stdout.decode(errors="replace").splitlines()[-15:])
        raise MachineError(f"{doing} failed with status {done.returncode}:\n{tail}")


def end(process: "subprocess.Popen[bytes]") -> None:
    """End an enclosed *process* and all below it, and wait until they are gone.

    `unshare` waits for the first process of the namespace, whose end is the end of all the others; killed itself it
    would leave them, dying, to whoever adopts orphans here.
    """
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    with suppress(ProcessLookupError, FileNotFoundError):
        for child in children.read_text().split():
            os.kill(int(child), signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_LAST_SECONDS)
    process.kill()
    process.wait()
