"""`solo5ctl export`: prints the declaration of a task."""

from argparse import Namespace
from pathlib import Path

from solo5_systemd.base.errors import InvalidRequestError, host_errors
from solo5_systemd.base.names import UnitKind, task_name
from solo5_systemd.cgroup.hierarchy import read, unified
from solo5_systemd.cli.context import CommandContext
from solo5_systemd.cli.parser import Parser
from solo5_systemd.declared.export import RunningTask, exported
from solo5_systemd.declared.files import read_sources
from solo5_systemd.engine.task import Task
from solo5_systemd.storage.locks import Record, records_of_tasks
from solo5_systemd.task.property_types import INFINITY

EPILOG = """\
What the running task does not show is a comment. To declare it:

  solo5ctl export web > web.unikernel
  solo5ctl rm --force web
  install -m 0644 web.unikernel /etc/solo5/ && systemctl daemon-reload && systemctl enable --now web
"""

_PROC = "/proc"


def configure(parser: Parser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("name", metavar="NAME", type=task_name, help="name of a task that runs or is dormant")
    parser.add_output_options(json=False)


def execute(arguments: Namespace, context: CommandContext) -> int:
    context.require_root()
    task = context.query(lambda engine: engine.task(arguments.name))
    if task.dormant:  # no process has its command line; the files of its declaration are one as well
        texts = ((each.path, each.content.decode("utf-8-sig", "replace")) for each in read_sources(task.name))
        text = "\n".join(f"# {path}\n{text}" for path, text in texts)
    else:
        text = exported(running_task(task))
    context.screen.write(text)
    return 0


def running_task(task: Task) -> RunningTask:
    """Return what is known of a task.

    Raises:
        InvalidRequestError: it does not run, or is a scope.
        HostError: it ended meanwhile.
    """
    if task.state.kind is UnitKind.SCOPE:
        raise InvalidRequestError(f"task {task.name} is a scope, which ends with its caller: expected a service.")
    if not task.state.main_pid:
        raise InvalidRequestError(f"task {task.name} does not run.", "Tasks that run: solo5ctl ps")
    with host_errors(f"the command line of task {task.name} cannot be read"):
        line = Path(_PROC, str(task.state.main_pid), "cmdline").read_bytes()
    group = f"{unified()}{task.state.control_group}"
    return RunningTask(
        name=task.name,
        fields=task.state.log_fields,
        argv=[word.decode("utf-8", "surrogateescape") for word in line.split(b"\0")[:-1]],
        reservation=task.reservation,
        disks=records_of_tasks().get(task.name, Record()).disks,
        memory_max=_memory_max(f"{group}/memory.max"),
        cpus=_cpus(f"{group}/cpu.max"),
        cpu_weight=_number(f"{group}/cpu.weight"),
    )


def _words(path: str) -> list[str]:
    """Return the words of a cgroup's file; empty without it."""
    return (read(path) or b"").decode("ascii", "replace").split()


def _number(path: str) -> int | None:
    return next((int(word) for word in _words(path) if word.isdigit()), None)


def _memory_max(path: str) -> int | None:
    return INFINITY if _words(path) == ["max"] else _number(path)


def _cpus(path: str) -> float | None:
    words = _words(path)
    # The first word is `max` without a quota.
    return int(words[0]) / int(words[1]) if len(words) == 2 and words[0].isdigit() else None
