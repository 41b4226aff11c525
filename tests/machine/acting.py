"""A start by the engine in this process, with something else that happens at one of its steps."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from tests.machine.conftest import GUESTS

from solo5_systemd.base.names import DeviceName, TaskName
from solo5_systemd.engine.backends import Backends, host_backends
from solo5_systemd.engine.runtime import Runtime
from solo5_systemd.settings import files
from solo5_systemd.storage.model import DiskRequest
from solo5_systemd.task.workload import MIB, Workload


class Instead:
    """A backend, or all of them, with something in the place of some of its attributes."""

    def __init__(self, inner: object, **others: object) -> None:
        self._inner = inner
        self.__dict__ |= others

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def by_path(path: Path | str) -> DiskRequest:
    return DiskRequest(disk=DeviceName("storage"), path=str(path))


def start(
    name: str, request: DiskRequest, before: Callable[[], object], after: Callable[[], object] | None = None
) -> None:
    """Start a task, with a callback just before its unit is started, and one before the names of its disks go."""
    workload = Workload(
        name=TaskName(name),
        image=str(GUESTS / "disk.spt"),
        arguments=("read", "stay"),
        memory=16 * MIB,
        disks=(request,),
    )

    async def story() -> None:
        async with host_backends(files.read_settings) as machine:

            async def acting(*words: Any) -> Any:
                before()
                return await machine.units.start(*words)

            if after is not None:
                cast(Any, machine.disks).release = lambda made: after()
            watched = Instead(machine, units=Instead(machine.units, start=acting))
            await Runtime(cast(Backends, watched)).start(workload)

    asyncio.run(story())


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed(script: str, *words: str) -> None:
    """Execute a script of Python that ends itself with SIGKILL."""
    done = subprocess.run([sys.executable, "-c", script, *words], cwd="/srv", check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
