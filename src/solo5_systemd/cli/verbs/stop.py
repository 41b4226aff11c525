"""`solo5ctl stop`: stops tasks."""

from argparse import Namespace
from typing import TYPE_CHECKING

from solo5_systemd.base.names import TaskName
from solo5_systemd.cli import arguments as typed
from solo5_systemd.cli.context import CommandContext
from solo5_systemd.cli.parser import Parser

if TYPE_CHECKING:
    from solo5_systemd.engine.runtime import Runtime


def configure(parser: Parser) -> None:
    """Add the options; defaults are text, as `workload` takes long to import."""
    parser.add_argument(
        "-t", "--time", metavar="SECONDS", type=typed.seconds, default="10",
        help="timeout before SIGKILL (default: 10)",
    )  # fmt: skip
    parser.add_argument(
        "-s", "--signal", metavar="SIGNAL", type=typed.stop_signal, default="TERM",
        help="stop signal, INT or TERM (default: TERM)",
    )  # fmt: skip
    parser.add_task_names()
    parser.add_output_options(json=False)


def execute(arguments: Namespace, context: CommandContext) -> int:
    async def stop(engine: "Runtime", name: TaskName) -> None:
        await engine.stop(name, signal=arguments.signal, timeout_s=arguments.time)

    return context.for_each(arguments.names, stop)
