"""`solo5ctl run --scope`: moves this process into the task's scope unit and executes the tender."""

import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NoReturn

from solo5_systemd.cli.context import CommandContext
from solo5_systemd.host.exec import execute
from solo5_systemd.workload import Workload

if TYPE_CHECKING:
    from solo5_systemd.engine.runtime import Runtime


def exec_in_scope(workload: Workload, context: CommandContext) -> NoReturn:
    """Start the scope with this process in it, and execute the tender.

    Raises:
        NotFoundError: the tender was removed after the preflight.
        Solo5Error: the scope did not start.
    """
    line: list[str] = []

    @asynccontextmanager
    async def spawn(argv: Sequence[str], descriptors: Sequence[int], _: str) -> AsyncGenerator[int, None]:
        for descriptor in descriptors:
            os.set_inheritable(descriptor, True)
        line.extend(argv)
        yield os.getpid()

    async def command(engine: "Runtime") -> int:
        await context.warn_unenforced(engine, workload)
        async with engine.start_scope(workload, spawn):
            return 0

    context.run(command)
    execute(line)
