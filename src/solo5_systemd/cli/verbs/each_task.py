"""The verbs that call a method of the engine for each task: `parser.FOR_EACH_TASK`.

The destination of an option is the name of the method's argument. Defaults are text, for startup time.
"""

from argparse import Namespace

from solo5_systemd.cli import arguments as typed
from solo5_systemd.cli.context import CommandContext
from solo5_systemd.cli.parser import FOR_EACH_TASK, VerbParser

_ARGUMENTS = ("force", "number", "signal", "timeout_s")


def configure(parser: VerbParser) -> None:
    if parser.verb == "rm":
        parser.add_argument("-f", "--force", action="store_true", help="stop running tasks first")
    if parser.verb == "kill":
        parser.add_argument(
            "-s", "--signal", metavar="SIGNAL", dest="number", type=typed.kill_signal, default="KILL",
            help="INT, TERM or KILL (default: KILL)",
        )  # fmt: skip
    if parser.verb == "stop":
        parser.add_argument(
            "-t", "--time", metavar="SECONDS", dest="timeout_s", type=typed.seconds, default="10",
            help="timeout before SIGKILL (default: 10)",
        )  # fmt: skip
        parser.add_argument(
            "-s", "--signal", metavar="SIGNAL", type=typed.stop_signal, default="TERM",
            help="stop signal, INT or TERM (default: TERM)",
        )  # fmt: skip
    parser.add_task_names()
    parser.add_output_options(json=False)


def execute(arguments: Namespace, context: CommandContext) -> int:
    method = FOR_EACH_TASK[arguments.verb]
    given = {name: value for name, value in vars(arguments).items() if name in _ARGUMENTS}
    return context.for_each(arguments.names, lambda engine, name: getattr(engine, method)(name, **given))
