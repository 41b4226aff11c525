"""The verbs that call the method of their name for each task: `parser.FOR_EACH_TASK`."""

from argparse import Namespace

from solo5_systemd.cli.context import CommandContext
from solo5_systemd.cli.parser import Parser


def configure(parser: Parser) -> None:
    parser.add_task_names()
    parser.add_output_options(json=False)


def execute(arguments: Namespace, context: CommandContext) -> int:
    return context.for_each(arguments.names, lambda engine, name: getattr(engine, arguments.verb)(name))
