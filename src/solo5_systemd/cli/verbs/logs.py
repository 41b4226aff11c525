"""`solo5ctl logs`: shows the console of a task."""

from argparse import Namespace
from typing import TYPE_CHECKING

from solo5_systemd.cli import arguments as typed
from solo5_systemd.cli.context import CommandContext
from solo5_systemd.cli.parser import Parser
from solo5_systemd.names import task_name

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from solo5_systemd.cli.console_output import Write
    from solo5_systemd.engine.queries import Queries
    from solo5_systemd.engine.runtime import Runtime
    from solo5_systemd.journal.lines import Line


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

    async def follow(engine: "Runtime") -> int:
        task = await engine.task(arguments.name)
        return await copied(engine.console(task, follow=True, last=arguments.tail))

    async def show(engine: "Queries") -> int:
        task = await engine.task(arguments.name)
        return await copied(engine.console(task, last=arguments.tail))

    async def copied(lines: "AsyncGenerator[Line, None]") -> int:
        from solo5_systemd.cli.console_output import copy_console

        count = await copy_console(lines, context.screen, _writer(arguments))
        if not count and not context.root:
            context.screen.message("no console lines: expected root or a member of group systemd-journal.")
        return 0

    return context.run(follow, needs_root=False) if arguments.follow else context.query(show)


def _writer(arguments: Namespace) -> "Write":
    from solo5_systemd.cli.console_output import write_json, write_plain, write_timed

    if arguments.json:
        return write_json
    return write_timed if arguments.timestamps else write_plain
