"""`solo5ctl wait`: waits for tasks to end and prints their exit statuses."""

from argparse import Namespace

from solo5_systemd.base.concurrency import gather
from solo5_systemd.cli.context import CommandContext
from solo5_systemd.cli.parser import Parser
from solo5_systemd.cli.render import UNKNOWN
from solo5_systemd.cli.task_output import outcome_json


def configure(parser: Parser) -> None:
    parser.add_task_names()
    parser.add_output_options(json=True)


def execute(arguments: Namespace, context: CommandContext) -> int:
    def documents() -> list[object]:
        outcomes = ((task.name, task.outcome) for task in tasks)
        return [{"name": name, "outcome": each and outcome_json(each)} for name, each in outcomes]

    tasks = context.run(lambda engine: gather(engine.wait(name) for name in arguments.names), needs_root=False)
    statuses = (task.outcome.shell_status if task.outcome else UNKNOWN for task in tasks)
    return context.show(arguments, documents, lambda: "".join(f"{status}\n" for status in statuses))
