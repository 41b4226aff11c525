"""`solo5ctl wait`."""

import asyncio
from argparse import Namespace
from typing import TYPE_CHECKING

from solo5_systemd.cli.parser import Parser
from solo5_systemd.cli.render import UNKNOWN
from solo5_systemd.cli.session import Session
from solo5_systemd.cli.task_output import outcome_json
from solo5_systemd.engine.task import Task

if TYPE_CHECKING:
    from solo5_systemd.engine.runtime import Runtime


def configure(parser: Parser) -> None:
    parser.add_task_names()
    parser.add_output_options(json=True)


def execute(arguments: Namespace, session: Session) -> int:
    async def story(engine: "Runtime") -> int:
        tasks = await asyncio.gather(*(engine.wait(name) for name in arguments.names))
        if arguments.json:
            session.screen.json([_json(task) for task in tasks])
        else:
            session.screen.write("".join(f"{_status(task)}\n" for task in tasks))
        return 0

    return session.engine(story, needs_root=False)


def _json(task: Task) -> dict[str, object]:
    return {"name": task.name, "outcome": outcome_json(task.outcome) if task.outcome else None}


def _status(task: Task) -> int | str:
    return task.outcome.shell_status if task.outcome else UNKNOWN
