"""`solo5ctl logs`: shows the console of a task, its stdout on stdout and its stderr on stderr."""

import json
from argparse import Namespace
from contextlib import aclosing
from typing import TYPE_CHECKING

from solo5_systemd.base.names import task_name
from solo5_systemd.cli.context import CommandContext
from solo5_systemd.cli.parser import Parser
from solo5_systemd.cli.render import moment
from solo5_systemd.cli.terminal import Screen
from solo5_systemd.journal import console
from solo5_systemd.task.quantities import integer, value_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from solo5_systemd.engine.queries import Queries
    from solo5_systemd.engine.runtime import Runtime
    from solo5_systemd.engine.task import Task
    from solo5_systemd.journal.lines import Line


def configure(parser: Parser) -> None:
    parser.add_argument("-f", "--follow", action="store_true", help="follow until the task has ended")
    parser.add_argument(
        "-n", "--tail", metavar="N", type=_line_count, help="start with the last N lines (default: all)"
    )
    parser.add_argument("-t", "--timestamps", action="store_true", help="prefix each line with its timestamp")
    parser.add_argument("name", metavar="NAME", type=task_name, help="name of a task")
    parser.add_output_options(json=True)


def _line_count(text: str) -> int:
    return value_of(lambda count: integer(count, 0, 10**9), text, "--tail")


def execute(arguments: Namespace, context: CommandContext) -> int:
    async def follow(engine: "Runtime") -> tuple[int, str]:
        task = await engine.task(arguments.name)
        return await copied(task, engine.follow(task, last=arguments.tail))

    async def show(engine: "Queries") -> tuple[int, str]:
        task = await engine.task(arguments.name)
        return await copied(task, engine.console(task, last=arguments.tail))

    async def copied(task: "Task", lines: "AsyncGenerator[Line, None]") -> tuple[int, str]:
        count = await copy_console(lines, context.screen, timed=arguments.timestamps, as_json=arguments.json)
        return count, task.state.log_namespace

    count, namespace = context.run(follow, needs_root=False) if arguments.follow else context.query(show)
    if not count:
        why = "expected root or a member of group systemd-journal."
        if context.root:
            import asyncio

            why = asyncio.run(console.storage_problem(namespace))
        if why:  # else it is empty
            context.screen.message(f"no console lines: {why}")
    return 0


async def copy_console(
    console: "AsyncGenerator[Line, None]", screen: Screen, *, timed: bool = False, as_json: bool = False
) -> int:
    """Write the lines of a console to the screen, and return their number.

    Args:
        timed: each after its journal timestamp (RFC 3339, UTC).
        as_json: each as one JSON object on a line (JSON Lines), so that a followed console can be parsed as it grows.
    """
    count = 0
    with screen.until_closed():
        async with aclosing(console) as lines:
            async for line in lines:
                if as_json:
                    message = line.message.decode("utf-8", "replace")
                    document = {"time": moment(line.realtime), "stream": line.stream.value, "message": message}
                    screen.write(json.dumps(document) + "\n")
                else:
                    prefix = f"{moment(line.realtime)} " if timed else ""
                    screen.copy(line.message, to_err=line.stream.value == "stderr", prefix=prefix)
                count += 1
    return count
