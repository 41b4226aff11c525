"""`solo5ctl rm`."""

from argparse import Namespace
from typing import TYPE_CHECKING

from solo5_systemd.cli.parser import Parser
from solo5_systemd.cli.session import Session

if TYPE_CHECKING:
    from solo5_systemd.engine.runtime import Runtime


def configure(parser: Parser) -> None:
    parser.add_argument("-f", "--force", action="store_true", help="stop running tasks first")
    parser.add_task_names()
    parser.add_output_options(json=False)


def execute(arguments: Namespace, session: Session) -> int:
    async def story(engine: "Runtime") -> int:
        return await session.each(arguments.names, lambda name: engine.remove(name, force=arguments.force))

    return session.engine(story)
