"""`solo5ctl inspect`: shows details of tasks."""

from argparse import Namespace
from typing import TYPE_CHECKING, Any

from solo5_systemd.cli.context import CommandContext
from solo5_systemd.cli.parser import Parser
from solo5_systemd.cli.render import fields

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from solo5_systemd.base.names import TaskName
    from solo5_systemd.cli.task_output import Disks
    from solo5_systemd.engine.queries import Queries
    from solo5_systemd.engine.task import Sample
    from solo5_systemd.storage.locks import Record

COUNTS = ("read_bytes", "written_bytes", "reads", "writes")


def configure(parser: Parser) -> None:
    parser.add_task_names()
    parser.add_output_options(json=True)


async def _disks(engine: "Queries", context: CommandContext, names: "Sequence[TaskName]") -> "Mapping[TaskName, Disks]":
    """Return the disks of tasks that run, as the lock files have them, which only root can read, and their I/O."""
    from solo5_systemd.storage.locks import records_of_tasks  # imported here for startup time

    held = records_of_tasks() if context.root else {}
    if held.keys().isdisjoint(names):
        return {}
    samples, full = await engine.samples(), await engine.full_disks()
    return {
        name: disks_json(held[name], samples.get(name), {each.disk for each in full if each.task == name})
        for name in names
        if name in held
    }


def disks_json(record: "Record", sample: "Sample | None" = None, full: "Collection[str]" = ()) -> "Disks":
    """Return the disks of one task, each with what has changed since its start, and its I/O on the device under it.

    `sample`: None: the task does not run. `full`: names of disks.
    """
    from solo5_systemd.storage.disk_state import change_of  # imported here for startup time

    shown: list[Mapping[str, object]] = []
    old: Mapping[str, bool] = {}
    if record.archives:
        from solo5_systemd.storage.archive_files import outdated  # imported here for startup time: it reads all files

        old = outdated(record)
    counted = sample.usage.disks or {} if sample is not None else {}
    for disk in record.disks:
        name, devices = disk["disk"], disk.get("devices", "").split()
        used = next((counted[device] for device in devices if device in counted), None)
        added: dict[str, object] = {
            "change": change_of(disk),
            "size": int(disk.get("size", 0)),
            "devices": devices,
            "io_limits": dict(word.split("=", 1) for word in disk.get("io", "").split()),
            "device_io": {key: value for key in COUNTS if (value := getattr(used, key, None)) is not None},
            "full": name in full,
        }
        known: dict[str, object] = {
            key: value for key, value in disk.items() if key not in ("identity", "devices", "io")
        }
        known |= {key: value for key, value in added.items() if value}
        shown.append({**known, **({"outdated": old[name]} if name in old else {})})
    return shown


def execute(arguments: Namespace, context: CommandContext) -> int:
    async def command(engine: "Queries") -> int:
        from solo5_systemd.cli.task_output import task_fields, task_json  # imported here for startup time

        tasks = [await engine.task(name) for name in arguments.names]
        limited = any(task.reservation and task.reservation.is_limited for task in tasks)
        drops = await engine.drops() if limited and context.root else {}
        problems = await engine.network_problems(tasks)
        disks = await _disks(engine, context, arguments.names)
        details: dict[TaskName, dict[str, Any]] = {
            task.name: {
                "drops": drops.get(task.name, {}),
                "disks": disks.get(task.name, ()),
                "problems": problems.get(task.name, ()),
                "awake": await engine.awake_because(task) if context.root else "",
            }
            for task in tasks
        }
        now = context.screen.now()
        return context.show(
            arguments,
            lambda: [task_json(task, **details[task.name]) for task in tasks],
            lambda: "\n".join(fields([*task_fields(task, now, **details[task.name])]) for task in tasks),
        )

    return context.query(command)
