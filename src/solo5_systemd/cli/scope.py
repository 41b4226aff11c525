"""`solo5ctl run --scope`: this process enters the task's scope and becomes its tender."""

import os
from typing import TYPE_CHECKING

from solo5_systemd.cli.session import Session
from solo5_systemd.errors import NotFoundError
from solo5_systemd.workload import Workload

if TYPE_CHECKING:
    from solo5_systemd.runtime import Runtime


def become(workload: Workload, session: Session) -> int:
    """Start the scope and execute the tender; never returns where that works.

    Raises:
        NotFoundError: the tender vanished in between.
        Solo5Error: the scope did not start.
    """
    line: list[str] = []

    async def story(engine: "Runtime") -> int:
        line.extend(await engine.start_scope(workload, os.getpid()))
        return 0

    session.engine(story)
    try:
        os.execv(line[0], line)  # noqa: S606 - no shell is meant
    except OSError as error:
        raise NotFoundError(f"{line[0]} cannot be executed: {error.strerror}.") from error
