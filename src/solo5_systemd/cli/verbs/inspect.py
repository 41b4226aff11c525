"""`solo5ctl inspect`: shows details of tasks."""

from argparse import Namespace
from typing import TYPE_CHECKING

from solo5_systemd.cli.context import CommandContext
from solo5_systemd.cli.parser import Parser
from solo5_systemd.cli.render import fields

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from solo5_systemd.base.names import TaskName
    from solo5_systemd.cgroup.usage import Io
    from solo5_systemd.cli.task_output import Disks
    from solo5_systemd.engine.queries import Queries
    from solo5_systemd.engine.task import Sample

COUNTS = ("read_bytes", "written_bytes", "reads", "writes")


def configure(parser: Parser) -> None:
    parser.add_task_names()
    parser.add_output_options(json=True)


def _with_changes(name: "TaskName", disks: "Disks", identities: "set[tuple[int, int]]") -> "Disks":
    """Return the disks of a task with what has changed since: `change` of a file, `outdated` of an archive."""
    if not disks:
        return disks
    from solo5_systemd.storage.disk_state import change_of  # imported here for startup time

    old: Mapping[str, bool] = {}
    if any(disk.get("backing") == "archive" for disk in disks):
        from solo5_systemd.storage.archive_files import outdated

        old = outdated(name)
    shown = []
    for disk in disks:
        change = change_of(disk, identities)
        known: dict[str, object] = {"change": change} if change else {}
        if size := disk.get("size"):
            known["size"] = int(size)
        shown.append({**disk, **known, **({"outdated": old[disk["disk"]]} if disk.get("disk") in old else {})})
    return shown


async def _disks(engine: "Queries", context: CommandContext, names: "Sequence[TaskName]") -> "Mapping[TaskName, Disks]":
    """Return the disks of tasks that run, as the lock files have them, which only root can read, and their I/O."""
    from solo5_systemd.storage.locks import disks_in, records_of_tasks  # imported here for startup time

    held = records_of_tasks() if context.root else {}
    if held.keys().isdisjoint(names):
        return dict.fromkeys(names, ())
    records = {name: held.get(name, (set(), {})) for name in names}
    found = {name: _with_changes(name, [*disks_in(own)], identities) for name, (identities, own) in records.items()}
    samples, full = await engine.samples(), await engine.full_disks()
    return {
        name: disks_json(disks, samples.get(name), {each.disk.disk for each in full if each.task == name})
        for name, disks in found.items()
    }


def disks_json(disks: "Disks", sample: "Sample | None", full: "Collection[str]" = ()) -> "Disks":
    """Return the disks of one task, each with what the task read and wrote on the device under it.

    Args:
        disks: as the lock file has them.
        sample: of the task; None: it does not run.
    """
    counted = sample.usage.disks or {} if sample is not None else {}
    return [_disk_json(disk, counted) | ({"full": True} if disk.get("disk") in full else {}) for disk in disks]


def _disk_json(disk: "Mapping[str, str]", counted: "Mapping[str, Io]") -> dict[str, object]:
    devices = disk.get("devices", "").split()
    known = {key: value for key, value in disk.items() if key not in ("devices", "io")}
    limits = dict(word.split("=", 1) for word in disk.get("io", "").split())
    used = next((counted[device] for device in devices if device in counted), None)
    counts = {key: value for key in COUNTS if (value := getattr(used, key, None)) is not None}
    return {
        **known,
        **({"devices": devices} if devices else {}),
        **({"io_limits": limits} if limits else {}),
        **({"device_io": counts} if counts else {}),
    }


def execute(arguments: Namespace, context: CommandContext) -> int:
    async def command(engine: "Queries") -> int:
        from solo5_systemd.cli.task_output import Details, task_fields, task_json  # imported here for startup time

        tasks = [await engine.task(name) for name in arguments.names]
        limited = any(task.reservation and task.reservation.is_limited for task in tasks)
        drops = await engine.drops() if limited and context.root else {}
        problems = await engine.network_problems(tasks)
        disks = await _disks(engine, context, arguments.names)
        details = {
            task.name: Details(
                drops=drops.get(task.name, {}),
                disks=disks[task.name],
                problems=problems.get(task.name, ()),
                awake=await engine.awake_because(task) if context.root else "",
            )
            for task in tasks
        }
        if arguments.json:
            context.screen.json([task_json(task, details[task.name]) for task in tasks])
        else:
            shown = (task_fields(task, context.screen.now(), details[task.name]) for task in tasks)
            context.screen.write("\n".join(fields(list(each)) for each in shown))
        return 0

    return context.query(command)
