"""`solo5ctl ps`: lists tasks."""

from argparse import Namespace
from typing import TYPE_CHECKING

from solo5_systemd.cli.context import CommandContext
from solo5_systemd.cli.parser import Parser
from solo5_systemd.cli.render import size, span, table
from solo5_systemd.cli.terminal import Screen

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from solo5_systemd.base.names import TaskName
    from solo5_systemd.engine.queries import Queries
    from solo5_systemd.engine.task import Task
    from solo5_systemd.network.endpoints import Endpoints
    from solo5_systemd.network.model import LeaseRecord

HEADER = ("NAME", "IMAGE", "STATUS", "MEMORY", "ADDRESS", "PORTS")

PROBLEMS_MAX = 5
"""Problems of networks that are shown: where one setting is wrong, each of hundreds of guests has one."""


def configure(parser: Parser) -> None:
    parser.add_argument("-a", "--all", action="store_true", help="include ended tasks")
    parser.add_argument("-q", "--quiet", action="store_true", help="print names only")
    parser.add_output_options(json=True)


def execute(arguments: Namespace, context: CommandContext) -> int:
    async def command(engine: "Queries") -> int:
        endpoints = await engine.endpoints()
        waiting = {name for name, each in endpoints.items() if each.waits}
        if arguments.quiet and not arguments.json:
            names = sorted({*await engine.names(ended=arguments.all), *waiting})
            context.screen.write("".join(f"{name}\n" for name in names))
            return 0
        tasks = await engine.tasks(ended=arguments.all, reservations=arguments.json)
        tasks = tuple(task for task in tasks if task.name not in waiting)
        if arguments.json:
            context.screen.json(_json(tasks, await engine.waiting() if waiting else ()))
        else:
            context.screen.write(_text(tasks, endpoints, context.screen))
            problems = await engine.network_problems(tasks)
            sentences = [f"{name}: {each}" for name, found in problems.items() for each in found]
            for sentence in sentences[:PROBLEMS_MAX]:
                context.screen.message(sentence)
            if others := len(sentences[PROBLEMS_MAX:]):
                context.screen.message(f"further problems of networks: {others}; see solo5ctl network repairs.")
        return 0

    # Outcomes may need the journal: those of several tasks are read concurrently, in an event loop.
    outcomes = arguments.all and (arguments.json or not arguments.quiet)
    return context.run(command, needs_root=False) if outcomes else context.query(command)


def _json(tasks: "Sequence[Task]", waiting: "Sequence[LeaseRecord]") -> list[dict[str, object]]:
    if not tasks and not waiting:
        return []
    from solo5_systemd.cli.task_output import task_json, waiting_json  # imported here for startup time, as in `_text`

    return [*map(task_json, tasks), *map(waiting_json, waiting)]


def _text(tasks: "Sequence[Task]", endpoints: "Mapping[TaskName, Endpoints]", screen: Screen) -> str:
    rows = sorted(_rows(tasks, endpoints, screen.now()))
    return table(HEADER, rows, {"STATUS": lambda cell: _paint(cell, screen)})


def _rows(tasks: "Sequence[Task]", endpoints: "Mapping[TaskName, Endpoints]", now: int) -> "Iterator[tuple[str, ...]]":
    if not tasks and not endpoints:
        return
    from solo5_systemd.cli.task_output import addresses, ports, status

    for task in tasks:
        memory, own = task.memory, endpoints.get(task.name)
        yield (
            task.name,
            task.image.rpartition("/")[2],
            status(task, now, own.asleep if own else 0),
            size(memory) if memory else "",
            addresses(own),
            ports(own),
        )
    for name, own in endpoints.items():
        if own.waits:  # it has no process, and its unit need not be loaded
            yield name, "", f"Dormant {span((now - own.asleep) / 1e6)}", "", addresses(own), ports(own)


def _paint(cell: str, screen: Screen) -> str:
    if cell.startswith(("Up", "Asleep")):
        return screen.paint(cell, "green")
    expected = cell.startswith(("Exited (0)", "Stopped", "Starting", "Stopping", "Dormant"))
    return cell if expected else screen.paint(cell, "red")
