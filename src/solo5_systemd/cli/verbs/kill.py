"""`solo5ctl kill`: sends a signal to tasks."""

from argparse import Namespace
from typing import TYPE_CHECKING

from solo5_systemd.cli import arguments as typed
from solo5_systemd.cli.context import CommandContext
from solo5_systemd.cli.parser import Parser

if TYPE_CHECKING:
    from solo5_systemd.engine.runtime import Runtime


def configure(parser: Parser) -> None:
    """Add the options."""
    parser.add_argument(
        "-s", "--signal", metavar="SIGNAL", type=typed.kill_signal, default=9,
        help="INT, TERM or KILL (default: KILL)",
    )  # fmt: skip
    parser.add_task_names()
    parser.add_output_options(json=False)


def execute(arguments: Namespace, context: CommandContext) -> int:
    """Run `solo5ctl kill` and return the exit status."""

    async def command(engine: "Runtime") -> int:
        return await context.for_each(arguments.names, lambda name: engine.kill(name, arguments.signal))

    return context.run(command)
