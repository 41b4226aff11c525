"""`solo5ctl metrics`."""

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from solo5_systemd.cli.families import families
from solo5_systemd.cli.openmetrics import openmetrics, prometheus
from solo5_systemd.cli.parser import Parser
from solo5_systemd.cli.session import Session
from solo5_systemd.cli.textfile import write_textfile

if TYPE_CHECKING:
    from solo5_systemd.engine.runtime import Runtime


def configure(parser: Parser) -> None:
    parser.add_argument(
        "--textfile",
        metavar="PATH",
        type=Path,
        help="write them to a file instead, in the dialect of node exporter's collector of text files",
    )
    parser.add_output_options(json=False)


def execute(arguments: Namespace, session: Session) -> int:
    async def story(engine: "Runtime") -> int:
        tasks = await engine.tasks(ended=False)
        samples = await engine.samples()
        # Where nothing is leased, the network service has nothing to do: it is not woken to say so.
        leased = session.root and any(task.reservation for task in tasks)
        found = families(tasks, samples, await engine.networks() if leased else ())
        if arguments.textfile:
            write_textfile(arguments.textfile, prometheus(found))
        else:
            session.screen.write(openmetrics(found))
        return 0

    return session.engine(story, needs_root=False)
