"""`solo5ctl logs`."""

from argparse import Namespace
from typing import TYPE_CHECKING

from solo5_systemd.cli import arguments as typed
from solo5_systemd.cli.console_output import Write, copy_console, write_json, write_plain, write_timed
from solo5_systemd.cli.parser import Parser
from solo5_systemd.cli.session import Session
from solo5_systemd.names import task_name

if TYPE_CHECKING:
    from solo5_systemd.engine.runtime import Runtime


def configure(parser: Parser) -> None:
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the task has ended")
    parser.add_argument(
        "-n", "--tail", metavar="N", type=typed.line_count, help="begin with the last N lines (default: all)"
    )
    parser.add_argument("-t", "--timestamps", action="store_true", help="put the time before each line")
    parser.add_argument("name", metavar="NAME", type=task_name, help="a task's name")
    parser.add_output_options(json=True)


def execute(arguments: Namespace, session: Session) -> int:
    async def story(engine: "Runtime") -> int:
        task = await engine.task(arguments.name)
        count = await copy_console(
            engine, task, session.screen, _writer(arguments), follow=arguments.follow, last=arguments.tail
        )
        if not count and not session.root:
            session.screen.say("no line to show: only root and the group systemd-journal see what others run.")
        return 0

    return session.engine(story, needs_root=False)


def _writer(arguments: Namespace) -> Write:
    if arguments.json:
        return write_json
    return write_timed if arguments.timestamps else write_plain
