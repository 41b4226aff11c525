"""`solo5ctl stats`."""

import asyncio
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from solo5_systemd.cgroup.usage import Usage
from solo5_systemd.cli.parser import Parser
from solo5_systemd.cli.render import table
from solo5_systemd.cli.screen import Screen
from solo5_systemd.cli.session import Session
from solo5_systemd.cli.usage import HEADER, row, usage_json
from solo5_systemd.errors import NoSuchTaskError
from solo5_systemd.names import TaskName, task_name

if TYPE_CHECKING:
    from solo5_systemd.runtime import Runtime

INTERVAL = 1.0
"""Seconds between two samples: a percentage of processor time needs two."""

Samples = Mapping[TaskName, Usage]


def configure(parser: Parser) -> None:
    parser.add_argument("--no-stream", action="store_true", help="show it once")
    parser.add_argument(
        "names", metavar="NAME", nargs="*", type=task_name, help="a task's name (default: all that run)"
    )
    parser.add_output_options(json=True)


def execute(arguments: Namespace, session: Session) -> int:
    async def story(engine: "Runtime") -> int:
        for name in arguments.names:
            await engine.task(name)  # a name that is wrong is an error, one that vanishes later is not
        before = await _sample(engine, arguments.names)
        if not before:
            _show({}, {}, arguments, session.screen)
        while before:
            await asyncio.sleep(INTERVAL)
            now = await _sample(engine, arguments.names)
            _show(before, now, arguments, session.screen)
            if arguments.no_stream:
                return 0
            before = now
        return 0

    return session.engine(story, needs_root=False)


async def _sample(engine: "Runtime", names: Sequence[TaskName]) -> Samples:
    wanted = names or await engine.names(ended=False)
    usages = await asyncio.gather(*(_usage(engine, name) for name in wanted))
    return {name: usage for name, usage in zip(wanted, usages, strict=True) if usage is not None}


async def _usage(engine: "Runtime", name: TaskName) -> Usage | None:
    try:
        return await engine.usage(name)
    except NoSuchTaskError:  # removed since it was listed
        return None


def _show(before: Samples, now: Samples, arguments: Namespace, screen: Screen) -> None:
    if arguments.json:
        screen.json([usage_json(name, before.get(name), usage) for name, usage in now.items()])
        return
    text = table(HEADER, [row(name, before.get(name), usage) for name, usage in now.items()])
    if arguments.no_stream:
        screen.write(text)
    else:
        screen.redraw(text)
