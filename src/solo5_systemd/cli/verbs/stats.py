"""`solo5ctl stats`: shows resource usage of tasks."""

import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from solo5_systemd.base.errors import NoSuchTaskError
from solo5_systemd.base.names import TaskName, task_name
from solo5_systemd.cli.arguments import interval
from solo5_systemd.cli.context import CommandContext
from solo5_systemd.cli.parser import Parser
from solo5_systemd.cli.render import table
from solo5_systemd.cli.screen import Screen

if TYPE_CHECKING:
    from solo5_systemd.engine.queries import Queries
    from solo5_systemd.engine.task import Sample

    Samples = Mapping[TaskName, Sample]

FIRST_INTERVAL_S = 1.0
"""Upper limit of the first interval, so that `-i 60` shows a CPU percentage, which needs two samples, after 1 s."""

SORTS = ("name", "cpu", "memory", "net", "block")
"""Sort keys: `name`, and those of `usage_table.SORT_KEYS`, which --help does not import."""


def configure(parser: Parser) -> None:
    parser.add_argument("--no-stream", action="store_true", help="print one sample and exit")
    parser.add_argument(
        "-i", "--interval", metavar="SECONDS", type=interval, default=1.0, help="sampling interval (default: 1)"
    )
    parser.add_argument(
        "-s",
        "--sort",
        choices=SORTS,
        default="name",
        help="sort by this column; all but name in descending order",
    )
    parser.add_argument("-w", "--wide", action="store_true", help="show more columns")
    parser.add_argument(
        "names", metavar="NAME", nargs="*", type=task_name, help="name of a task (default: all that have not ended)"
    )
    parser.add_output_options(json=True)


def execute(arguments: Namespace, context: CommandContext) -> int:
    async def command(engine: "Queries") -> int:
        await _check(engine, arguments.names)
        detailed = context.root and arguments.json
        before = await _sample(engine, arguments.names)
        if not before and (arguments.names or arguments.no_stream):
            _show({}, {}, arguments, context.screen)
            return 0
        pause = min(FIRST_INTERVAL_S, arguments.interval)
        while before or not arguments.names:
            time.sleep(pause)  # noqa: ASYNC251 - nothing else runs meanwhile
            now = await _sample(engine, arguments.names, detailed=detailed)
            _show(before, now, arguments, context.screen)
            if arguments.no_stream:
                return 0
            before, pause = now, arguments.interval
        return 0

    return context.query(command)


async def _check(engine: "Queries", names: Sequence[TaskName]) -> None:
    """Raise NoSuchTaskError for an unknown name; a task that ends later is no error."""
    known = await engine.names() if names else ()
    for name in names:
        if name not in known:
            raise NoSuchTaskError(f"no task is named {name!r}.", "List them: solo5ctl ps --all")


async def _sample(engine: "Queries", names: Sequence[TaskName], *, detailed: bool = False) -> "Samples":
    samples = await engine.samples(drops=detailed)
    if detailed:
        from solo5_systemd.cli.disk_usage import with_disks

        samples = with_disks(samples)
    return {name: samples[name] for name in dict.fromkeys(names) if name in samples} if names else samples


def _show(before: "Samples", now: "Samples", arguments: Namespace, screen: Screen) -> None:
    from solo5_systemd.cli.usage_table import HEADER, WIDE_HEADER, row, usage_json

    names = _sorted(before, now, arguments.sort)
    if arguments.json:
        screen.json([usage_json(name, before.get(name), now[name]) for name in names])
        return
    header = (*HEADER, *WIDE_HEADER) if arguments.wide else HEADER
    text = table(header, [row(name, before.get(name), now[name], wide=arguments.wide) for name in names])
    if arguments.no_stream:
        screen.write(text)
    else:
        screen.redraw(text)


def _sorted(before: "Samples", now: "Samples", order: str) -> Sequence[TaskName]:
    if order == "name":
        return list(now)
    from solo5_systemd.cli.usage_table import SORT_KEYS

    value = SORT_KEYS[order]
    return sorted(now, key=lambda name: value(before.get(name), now[name]), reverse=True)
