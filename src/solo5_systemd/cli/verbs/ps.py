"""`solo5ctl ps`: lists tasks."""

from argparse import Namespace
from collections.abc import Iterable
from typing import TYPE_CHECKING

from solo5_systemd.cli.context import CommandContext
from solo5_systemd.cli.parser import Parser
from solo5_systemd.cli.render import size, table
from solo5_systemd.cli.screen import Screen
from solo5_systemd.cli.task_output import addresses, ports, status, task_json
from solo5_systemd.engine.task import Task

if TYPE_CHECKING:
    from solo5_systemd.engine.runtime import Runtime

HEADER = ("NAME", "IMAGE", "STATUS", "MEMORY", "ADDRESS", "PORTS")


def configure(parser: Parser) -> None:
    """Add the options."""
    parser.add_argument("-a", "--all", action="store_true", help="include ended tasks")
    parser.add_argument("-q", "--quiet", action="store_true", help="print names only")
    parser.add_output_options(json=True)


def execute(arguments: Namespace, context: CommandContext) -> int:
    """Run `solo5ctl ps` and return the exit status."""

    async def command(engine: "Runtime") -> int:
        if arguments.quiet and not arguments.json:
            names = await engine.names(ended=arguments.all)
            context.screen.write("".join(f"{name}\n" for name in names))
            return 0
        tasks = await engine.tasks(ended=arguments.all)
        if arguments.json:
            context.screen.json([task_json(task) for task in tasks])
        else:
            context.screen.write(_text(tasks, context.screen))
        return 0

    return context.run(command, needs_root=False)


def _text(tasks: Iterable[Task], screen: Screen) -> str:
    now = screen.now()
    return table(HEADER, [_row(task, now) for task in tasks], lambda column, cell: _paint(column, cell, screen))


def _row(task: Task, now: int) -> tuple[str, ...]:
    return (
        task.name,
        task.image.rpartition("/")[2],
        status(task, now),
        size(task.memory) if task.memory else "",
        addresses(task.reservation),
        ports(task.reservation),
    )


def _paint(column: str, cell: str, screen: Screen) -> str:
    if column != "STATUS":
        return cell
    if cell.startswith("Up"):
        return screen.paint(cell, "green")
    expected = cell.startswith(("Exited (0)", "Stopped", "Starting", "Stopping"))
    return cell if expected else screen.paint(cell, "red")
