"""`solo5ctl stop`: stops tasks."""

from argparse import Namespace
from typing import TYPE_CHECKING

from solo5_systemd.cli import arguments as typed
from solo5_systemd.cli.context import CommandContext
from solo5_systemd.cli.parser import Parser
from solo5_systemd.names import TaskName
from solo5_systemd.workload import STOP_TIMEOUT_S, StopSignal

if TYPE_CHECKING:
    from solo5_systemd.engine.runtime import Runtime


def configure(parser: Parser) -> None:
    """Add the options."""
    parser.add_argument(
        "-t", "--time", metavar="SECONDS", type=typed.seconds, default=STOP_TIMEOUT_S,
        help=f"timeout before SIGKILL (default: {STOP_TIMEOUT_S:.0f})",
    )  # fmt: skip
    parser.add_argument(
        "-s", "--signal", metavar="SIGNAL", type=typed.stop_signal, default=StopSignal.TERM,
        help="stop signal, INT or TERM (default: TERM)",
    )  # fmt: skip
    parser.add_task_names()
    parser.add_output_options(json=False)


def execute(arguments: Namespace, context: CommandContext) -> int:
    """Run `solo5ctl stop` and return the exit status."""

    async def command(engine: "Runtime") -> int:
        async def stop(name: TaskName) -> None:
            await engine.stop(name, signal=arguments.signal, timeout_s=arguments.time)

        return await context.for_each(arguments.names, stop)

    return context.run(command)
