"""`solo5ctl inspect`."""

from argparse import Namespace
from typing import TYPE_CHECKING

from solo5_systemd.cli.parser import Parser
from solo5_systemd.cli.render import fields
from solo5_systemd.cli.session import Session
from solo5_systemd.cli.task_output import task_fields, task_json

if TYPE_CHECKING:
    from solo5_systemd.engine.runtime import Runtime


def configure(parser: Parser) -> None:
    parser.add_task_names()
    parser.add_output_options(json=True)


def execute(arguments: Namespace, session: Session) -> int:
    async def story(engine: "Runtime") -> int:
        tasks = [await engine.task(name) for name in arguments.names]
        if arguments.json:
            session.screen.json([task_json(task) for task in tasks])
        else:
            now = session.screen.now()
            session.screen.write("\n".join(fields(list(task_fields(task, now))) for task in tasks))
        return 0

    return session.engine(story, needs_root=False)
