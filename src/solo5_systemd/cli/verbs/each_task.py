"""The verbs that call a method of the engine for each task: `parser.FOR_EACH_TASK`.

The destination of an option is the name of the method's argument.
"""

import asyncio
import re
import signal as signals
from argparse import Namespace

from solo5_systemd.base.errors import InvalidRequestError, Solo5Error
from solo5_systemd.base.names import TaskName
from solo5_systemd.cli.context import CommandContext
from solo5_systemd.cli.parser import FOR_EACH_TASK, Parser
from solo5_systemd.engine.runtime import Runtime
from solo5_systemd.task.quantities import DECIMAL, signal_number
from solo5_systemd.task.workload import STOP_TIMEOUT_S

AT_ONCE = 100
"""Tasks at a time: a removal has a lock by a descriptor, and many shells permit 1,024."""

_ARGUMENTS = ("force", "number", "signal", "timeout_s")


def configure(parser: Parser) -> None:
    if parser.verb == "rm":
        parser.add_argument("-f", "--force", action="store_true", help="stop running tasks first")
    if parser.verb == "kill":
        parser.add_argument(
            "-s", "--signal", metavar="SIGNAL", dest="number", type=_kill_signal, default=signals.SIGKILL,
            help="INT, TERM or KILL (default: KILL)",
        )  # fmt: skip
    if parser.verb == "stop":
        parser.add_argument(
            "-t", "--time", metavar="SECONDS", dest="timeout_s", type=_seconds, default=STOP_TIMEOUT_S,
            help=f"timeout before SIGKILL (default: {STOP_TIMEOUT_S:g})",
        )  # fmt: skip
        parser.add_argument(
            "-s", "--signal", metavar="SIGNAL", type=_stop_signal, default=signals.SIGTERM,
            help="stop signal, INT or TERM (default: TERM)",
        )  # fmt: skip
    parser.add_task_names()
    parser.add_output_options(json=False)


def _seconds(text: str) -> float:
    if not re.fullmatch(DECIMAL, text, re.ASCII):
        raise InvalidRequestError(f"--time {text!r} is not a timeout: expected seconds, such as 10 or 0.5.")
    return float(text)


def _stop_signal(text: str) -> int:
    number = signal_number(text)
    if number not in (signals.SIGINT, signals.SIGTERM):
        raise InvalidRequestError(f"--signal {text!r} is not a stop signal: expected INT or TERM.")
    return number


def _kill_signal(text: str) -> int:
    number = signal_number(text)
    if number not in (signals.SIGINT, signals.SIGTERM, signals.SIGKILL):
        raise InvalidRequestError(
            f"--signal {text!r} cannot be sent: expected INT, TERM or KILL, the signals that a tender handles; guests "
            "receive none.",
            "To pause and resume a guest: solo5ctl freeze, solo5ctl thaw.",
        )
    return number


def execute(arguments: Namespace, context: CommandContext) -> int:
    method = FOR_EACH_TASK[arguments.verb]
    given = {name: value for name, value in vars(arguments).items() if name in _ARGUMENTS}

    async def attempt(engine: Runtime, name: TaskName, slots: asyncio.Semaphore) -> int:
        try:
            async with slots:
                await getattr(engine, method)(name, **given)
            context.screen.write(f"{name}\n")
        except Solo5Error as error:  # what one task raises must not cancel the calls for the others
            context.screen.error(error)
            return error.exit_status
        return 0

    async def command(engine: Runtime) -> int:
        slots = asyncio.Semaphore(AT_ONCE)
        return max(await asyncio.gather(*(attempt(engine, name, slots) for name in dict.fromkeys(arguments.names))))

    return context.run(command)
