"""`solo5ctl rm`: removes ended tasks."""

from argparse import Namespace

from solo5_systemd.cli.context import CommandContext
from solo5_systemd.cli.parser import Parser


def configure(parser: Parser) -> None:
    parser.add_argument("-f", "--force", action="store_true", help="stop running tasks first")
    parser.add_task_names()
    parser.add_output_options(json=False)


def execute(arguments: Namespace, context: CommandContext) -> int:
    return context.for_each(arguments.names, lambda engine, name: engine.remove(name, force=arguments.force))
