"""`solo5ctl kill`: sends a signal to tasks."""

from argparse import Namespace

from solo5_systemd.cli import arguments as typed
from solo5_systemd.cli.context import CommandContext
from solo5_systemd.cli.parser import Parser


def configure(parser: Parser) -> None:
    parser.add_argument(
        "-s", "--signal", metavar="SIGNAL", type=typed.kill_signal, default=9,
        help="INT, TERM or KILL (default: KILL)",
    )  # fmt: skip
    parser.add_task_names()
    parser.add_output_options(json=False)


def execute(arguments: Namespace, context: CommandContext) -> int:
    return context.for_each(arguments.names, lambda engine, name: engine.kill(name, arguments.signal))
