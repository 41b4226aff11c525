"""`solo5ctl logs`: shows the console of a task."""

from argparse import Namespace
from typing import TYPE_CHECKING

from solo5_systemd.cli import arguments as typed
from solo5_systemd.cli.console_output import Write, copy_console, write_json, write_plain, write_timed
from solo5_systemd.cli.context import CommandContext
from solo5_systemd.cli.parser import Parser
from solo5_systemd.names import task_name

if TYPE_CHECKING:
    from solo5_systemd.engine.runtime import Runtime


def configure(parser: Parser) -> None:
    """Add the options."""
    parser.add_argument("-f", "--follow", action="store_true", help="follow until the task has ended")
    parser.add_argument(
        "-n", "--tail", metavar="N", type=typed.line_count, help="start with the last N lines (default: all)"
    )
    parser.add_argument("-t", "--timestamps", action="store_true", help="prefix each line with its timestamp")
    parser.add_argument("name", metavar="NAME", type=task_name, help="name of a task")
    parser.add_output_options(json=True)


def execute(arguments: Namespace, context: CommandContext) -> int:
    """Run `solo5ctl logs` and return the exit status."""

    async def command(engine: "Runtime") -> int:
        task = await engine.task(arguments.name)
        count = await copy_console(
            engine, task, context.screen, _writer(arguments), follow=arguments.follow, last=arguments.tail
        )
        if not count and not context.root:
            context.screen.message("no console lines: expected root or a member of group systemd-journal.")
        return 0

    return context.run(command, needs_root=False)


def _writer(arguments: Namespace) -> Write:
    if arguments.json:
        return write_json
    return write_timed if arguments.timestamps else write_plain
