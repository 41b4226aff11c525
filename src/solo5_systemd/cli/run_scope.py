"""`solo5ctl run --scope`: this process enters the task's scope and becomes its tender."""

import os
from typing import TYPE_CHECKING, NoReturn

from solo5_systemd.cli.session import Session
from solo5_systemd.host.execution import execute
from solo5_systemd.workload import Workload

if TYPE_CHECKING:
    from solo5_systemd.engine.runtime import Runtime


def become(workload: Workload, session: Session) -> NoReturn:
    """Start the scope and execute the tender.

    Raises:
        NotFoundError: the tender vanished in between.
        Solo5Error: the scope did not start.
    """
    line: list[str] = []

    async def story(engine: "Runtime") -> int:
        await session.warn_unenforced(engine, workload)
        line.extend((await engine.start_scope(workload, os.getpid())).line)
        return 0

    session.engine(story)
    execute(line)
