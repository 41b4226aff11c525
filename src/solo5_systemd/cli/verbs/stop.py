"""`solo5ctl stop`."""

from argparse import Namespace
from typing import TYPE_CHECKING

from solo5_systemd.cli import arguments as typed
from solo5_systemd.cli.parser import Parser
from solo5_systemd.cli.session import Session
from solo5_systemd.names import TaskName
from solo5_systemd.workload import STOP_TIMEOUT, StopSignal

if TYPE_CHECKING:
    from solo5_systemd.engine.runtime import Runtime


def configure(parser: Parser) -> None:
    parser.add_argument(
        "-t", "--time", metavar="SECONDS", type=typed.seconds, default=STOP_TIMEOUT,
        help=f"how long to wait before the task is killed (default: {STOP_TIMEOUT:.0f})",
    )  # fmt: skip
    parser.add_argument(
        "-s", "--signal", metavar="SIGNAL", type=typed.stop_signal, default=StopSignal.TERM,
        help="INT or TERM (default: TERM)",
    )  # fmt: skip
    parser.add_task_names()
    parser.add_output_options(json=False)


def execute(arguments: Namespace, session: Session) -> int:
    async def story(engine: "Runtime") -> int:
        async def stop(name: TaskName) -> None:
            await engine.stop(name, signal=arguments.signal, patience=arguments.time)

        return await session.each(arguments.names, stop)

    return session.engine(story)
