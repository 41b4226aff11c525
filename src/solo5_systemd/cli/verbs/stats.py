"""`solo5ctl stats`."""

import asyncio
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from solo5_systemd.cli.arguments import interval
from solo5_systemd.cli.parser import Parser
from solo5_systemd.cli.render import table
from solo5_systemd.cli.screen import Screen
from solo5_systemd.cli.session import Session
from solo5_systemd.cli.usage_table import HEADER, ORDERS, WIDER, row, usage_json
from solo5_systemd.engine.task import Sample
from solo5_systemd.errors import NoSuchTaskError
from solo5_systemd.names import TaskName, task_name

if TYPE_CHECKING:
    from solo5_systemd.engine.runtime import Runtime

FIRST = 1.0
"""Seconds until the first is shown: a percentage of processor time needs two samples."""

Samples = Mapping[TaskName, Sample]


def configure(parser: Parser) -> None:
    parser.add_argument("--no-stream", action="store_true", help="show it once")
    parser.add_argument(
        "-i", "--interval", metavar="SECONDS", type=interval, default=1.0, help="show it so often (default: 1)"
    )
    parser.add_argument("-s", "--sort", choices=("name", *ORDERS), default="name", help="the largest first")
    parser.add_argument("-w", "--wide", action="store_true", help="more columns")
    parser.add_argument(
        "names", metavar="NAME", nargs="*", type=task_name, help="a task's name (default: all that run)"
    )
    parser.add_output_options(json=True)


def execute(arguments: Namespace, session: Session) -> int:
    async def story(engine: "Runtime") -> int:
        await _check(engine, arguments.names)
        before = await _sample(engine, arguments.names)
        if not before and (arguments.names or arguments.no_stream):
            _show({}, {}, arguments, session.screen)
            return 0
        pause = min(FIRST, arguments.interval)
        while before or not arguments.names:
            await asyncio.sleep(pause)
            now = await _sample(engine, arguments.names)
            _show(before, now, arguments, session.screen)
            if arguments.no_stream:
                return 0
            before, pause = now, arguments.interval
        return 0

    return session.engine(story, needs_root=False)


async def _check(engine: "Runtime", names: Sequence[TaskName]) -> None:
    """A name that is wrong is an error, a task that ends later is none."""
    known = await engine.names() if names else ()
    for name in names:
        if name not in known:
            raise NoSuchTaskError(f"no task is named {name!r}.", "List them: solo5ctl ps --all")


async def _sample(engine: "Runtime", names: Sequence[TaskName]) -> Samples:
    samples = await engine.samples()
    return {name: samples[name] for name in dict.fromkeys(names) if name in samples} if names else samples


def _show(before: Samples, now: Samples, arguments: Namespace, screen: Screen) -> None:
    names = _sorted(before, now, arguments.sort)
    if arguments.json:
        screen.json([usage_json(name, before.get(name), now[name]) for name in names])
        return
    header = (*HEADER, *WIDER) if arguments.wide else HEADER
    text = table(header, [row(name, before.get(name), now[name], wide=arguments.wide) for name in names])
    if arguments.no_stream:
        screen.write(text)
    else:
        screen.redraw(text)


def _sorted(before: Samples, now: Samples, order: str) -> Sequence[TaskName]:
    if order == "name":
        return list(now)
    value = ORDERS[order]
    return sorted(now, key=lambda name: value(before.get(name), now[name]), reverse=True)
