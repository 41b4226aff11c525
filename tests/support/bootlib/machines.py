"""Several machines on one link: booted at once, and each killed, booted again, cut off and joined by itself."""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from . import container, link
from .channel import Kind
from .errors import MachineError
from .machine import Machine, Wanted
from .report import not_running
from .session import Copy

_SHARED = "shared"
"""The directory that all machines have in common, as nodes have a file system of a network."""

_MARGIN = 30  # seconds that a machine may take to end a command whose time is over


class Machines:
    """Machines by name; the first one runs the command, and boots once.

    A machine's disk lasts as long as this object: what is on it is there when the machine boots again.
    """

    def __init__(self, wanted: Wanted, run: Path, names: list[str], control: Path) -> None:
        self._wanted = wanted
        self._run = run
        self._names = names
        self._control = control
        self._running: dict[str, tuple[Machine, ExitStack]] = {}

    @property
    def first(self) -> Machine:
        """The machine that runs the command; every request is about one of the others."""
        return self._running[self._names[0]][0]

    def boot(self, *names: str) -> None:
        """Boot machines that do not run, all at the same time.

        Raises:
            MachineError: one is running, or has no such name, or did not come up.
        """
        if unknown := [name for name in names if name not in self._names]:
            raise MachineError(f"no machine “{unknown[0]}”; these are: {' '.join(self._names)}")
        if running := [name for name in names if name in self._running]:
            raise MachineError(f"{running[0]} is running already; kill it first")
        with ExitStack() as failed:
            stacks = {name: failed.enter_context(ExitStack()) for name in names}
            starting = {name: stacks[name].enter_context(self._started(name)) for name in names}
            booted = {name: (starting[name](), stacks[name]) for name in names}
            failed.pop_all()
        self._running.update(booted)
        for name in names:
            not_running(name, self._running[name][0].state)

    def _started(self, name: str) -> container.Starting:
        options = [f"--network-bridge={link.BRIDGE}", f"--bind={self._run / _SHARED}:/srv/{_SHARED}"]
        if name == self._names[0]:
            options.append(f"--bind={self._control}:/run/host-control")
        return container.started(self._wanted, self._run / name, name=name, options=options)

    def put(self, copies: list[Copy]) -> None:
        """Copy files and directories into every machine."""
        for machine, _ in self._running.values():
            machine.session.put(copies)

    def run(self, name: str, argv: list[str], seconds: float) -> dict[str, Any]:
        """Run a command in a machine, and return its status and what it wrote; it is ended after *seconds*."""
        session = self._machine(name)[0].session
        session.within(seconds + _MARGIN, f"a command in {name}")
        written: dict[Kind, bytearray] = {Kind.STDOUT: bytearray(), Kind.STDERR: bytearray()}
        bounded = ["timeout", "--kill-after=5", str(seconds), *argv]
        status = session.run(bounded, "container", output=lambda kind, data: written[kind].extend(data))
        texts = [data.decode(errors="replace") for data in written.values()]
        return {"status": status, "stdout": texts[0], "stderr": texts[1]}

    def kill(self, name: str) -> None:
        """End a machine as a loss of power does: none of its processes can react."""
        self._machine(name)[1].close()
        del self._running[name]
        link.remove(name)

    def unplug(self, name: str) -> None:
        self._machine(name)
        link.unplug(name)

    def plug(self, name: str) -> None:
        self._machine(name)
        link.plug(name)

    def _machine(self, name: str) -> tuple[Machine, ExitStack]:
        others = [other for other in self._names[1:] if other in self._running]
        if name not in others:
            raise MachineError(f"no other machine “{name}” is running; these are: {' '.join(others)}")
        return self._running[name]

    def close(self) -> None:
        while self._running:
            self._running.popitem()[1][1].close()


@contextmanager
def booted(wanted: Wanted, run: Path, names: list[str], control: Path) -> Iterator[Machines]:
    """Boot machines of *names* with their passing files in *run*, and end them when the context ends.

    Args:
        control: the Unix socket for the first machine's requests.
    """
    link.make()
    (run / _SHARED).mkdir(parents=True)
    with ExitStack() as disks:
        for name in names:
            disks.enter_context(_disk(run / name, link.files(name, names)))
        machines = Machines(wanted, run, names, control)
        disks.callback(machines.close)
        machines.boot(*names)
        yield machines


@contextmanager
def _disk(run: Path, files: dict[str, str]) -> Iterator[None]:
    """Make what a machine writes outlive its end, in memory, beginning with *files* below /etc."""
    private = run / "private"
    private.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "machine", private], check=True)
    try:
        etc = private / "upper" / "etc"
        for path, text in files.items():
            (etc / path).parent.mkdir(parents=True, exist_ok=True)
            (etc / path).write_text(text)
        wanted = etc / "systemd/system/multi-user.target.wants"
        wanted.mkdir()
        (wanted / "link.service").symlink_to("../link.service")
        yield
    finally:
        subprocess.run(["umount", "--lazy", private], check=True)
