"""`solo5ctl gc`."""

from argparse import Namespace
from typing import TYPE_CHECKING

from solo5_systemd.cli.parser import Parser
from solo5_systemd.cli.session import Session
from solo5_systemd.text import visible

if TYPE_CHECKING:
    from solo5_systemd.engine.runtime import Runtime


def configure(parser: Parser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="show what would be removed, and remove nothing")
    parser.add_output_options(json=True)


def execute(arguments: Namespace, session: Session) -> int:
    async def story(engine: "Runtime") -> int:
        removed = await engine.collect(dry_run=arguments.dry_run)
        if arguments.json:
            session.screen.json(list(removed))
        else:
            session.screen.write("".join(f"{visible(line)}\n" for line in removed))
        return 0

    return session.engine(story)
