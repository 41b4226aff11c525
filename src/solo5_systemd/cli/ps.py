"""`solo5ctl ps`."""

from argparse import Namespace
from typing import TYPE_CHECKING

from solo5_systemd.cli.describe import addresses, ports, status, task_json
from solo5_systemd.cli.parser import Parser
from solo5_systemd.cli.render import size, table
from solo5_systemd.cli.screen import Screen
from solo5_systemd.cli.session import Session
from solo5_systemd.task import Phase, Task

if TYPE_CHECKING:
    from solo5_systemd.runtime import Runtime

HEADER = ("NAME", "IMAGE", "STATUS", "MEMORY", "ADDRESS", "PORTS")


def configure(parser: Parser) -> None:
    parser.add_argument("-a", "--all", action="store_true", help="ended tasks too")
    parser.add_argument("-q", "--quiet", action="store_true", help="names only")
    parser.add_output_options(json=True)


def execute(arguments: Namespace, session: Session) -> int:
    async def story(engine: "Runtime") -> int:
        tasks = [task for task in await engine.tasks() if arguments.all or task.phase is not Phase.ENDED]
        _show(tasks, arguments, session.screen)
        return 0

    return session.engine(story, needs_root=False)


def _show(tasks: list[Task], arguments: Namespace, screen: Screen) -> None:
    if arguments.json:
        screen.json([task_json(task) for task in tasks])
    elif arguments.quiet:
        screen.write("".join(f"{task.name}\n" for task in tasks))
    else:
        now = screen.now()
        screen.write(table(HEADER, [_row(task, now) for task in tasks], lambda c, cell: _paint(c, cell, screen)))


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
    calm = cell.startswith(("Exited (0)", "Stopped", "Starting", "Stopping"))
    return cell if calm else screen.paint(cell, "red")
