"""`solo5ctl logs`: shows the console of a task."""

from argparse import Namespace
from typing import TYPE_CHECKING

from solo5_systemd.base.names import task_name
from solo5_systemd.cli import arguments as typed
from solo5_systemd.cli.context import CommandContext
from solo5_systemd.cli.parser import Parser

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from solo5_systemd.cli.console_output import Write
    from solo5_systemd.engine.queries import Queries
    from solo5_systemd.engine.runtime import Runtime
    from solo5_systemd.engine.task import Task
    from solo5_systemd.journal.lines import Line


def configure(parser: Parser) -> None:
    parser.add_argument("-f", "--follow", action="store_true", help="follow until the task has ended")
    parser.add_argument(
        "-n", "--tail", metavar="N", type=typed.line_count, help="start with the last N lines (default: all)"
    )
    parser.add_argument("-t", "--timestamps", action="store_true", help="prefix each line with its timestamp")
    parser.add_argument("name", metavar="NAME", type=task_name, help="name of a task")
    parser.add_output_options(json=True)


def execute(arguments: Namespace, context: CommandContext) -> int:
    count, namespace = 0, ""

    async def follow(engine: "Runtime") -> int:
        task = await engine.task(arguments.name)
        return await copied(task, engine.console(task, follow=True, last=arguments.tail))

    async def show(engine: "Queries") -> int:
        task = await engine.task(arguments.name)
        return await copied(task, engine.console(task, last=arguments.tail))

    async def copied(task: "Task", lines: "AsyncGenerator[Line, None]") -> int:
        from solo5_systemd.cli.console_output import copy_console

        nonlocal count, namespace
        namespace = task.state.log_namespace
        count = await copy_console(lines, context.screen, _writer(arguments))
        return 0

    status = context.run(follow, needs_root=False) if arguments.follow else context.query(show)
    if not status and not count and (why := _why_none(namespace, context)):
        context.screen.message(f"no console lines: {why}")
    return status


def _why_none(namespace: str, context: CommandContext) -> str:
    """Return why a console may seem to be empty; nothing where it is."""
    if not context.root:
        return "expected root or a member of group systemd-journal."
    import asyncio

    from solo5_systemd.journal.console_storage import storage_problem

    return asyncio.run(storage_problem(namespace))


def _writer(arguments: Namespace) -> "Write":
    from solo5_systemd.cli.console_output import write_json, write_plain, write_timed

    if arguments.json:
        return write_json
    return write_timed if arguments.timestamps else write_plain
