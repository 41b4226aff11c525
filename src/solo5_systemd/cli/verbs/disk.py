"""`solo5ctl disk`: creates, lists and removes named disks and their snapshots; inspects disks by path, too."""

import os
import stat
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path

from solo5_systemd.base.errors import InvalidRequestError, Solo5Error, TakenError, host_errors
from solo5_systemd.base.locks import closing
from solo5_systemd.base.names import DiskName, SnapshotName, TaskName, disk_name, disk_or_snapshot, snapshot_name
from solo5_systemd.base.paths import open_directory, open_path, way_of, within
from solo5_systemd.cli.context import CommandContext
from solo5_systemd.cli.parser import Parser
from solo5_systemd.cli.render import fields, moment, size, span, table
from solo5_systemd.settings.files import read_settings
from solo5_systemd.storage.disk_state import DiskPath, inspect_path
from solo5_systemd.storage.named_disks import NamedDisk, NamedDisks
from solo5_systemd.storage.new_file import create_file
from solo5_systemd.storage.quotas import DiskClaims
from solo5_systemd.storage.snapshots import Snapshot, Snapshots
from solo5_systemd.task import quantities

HEADER = ("NAME", "SIZE", "ALLOCATED", "TASK", "LAST USED")
SNAPSHOT_HEADER = ("SNAPSHOT", "SIZE", "ALLOCATED", "MADE")

EPILOG = """\
SIZE is in bytes, or with a suffix: 512K, 64M, 1G, 1T (powers of 1024). A disk is used by its name:

  solo5ctl disk create data 64M
  solo5ctl run --block storage=disk:data web.hvt
"""


def configure(parser: Parser) -> None:
    parser.usage = "solo5ctl disk create|ls|inspect|resize|rm|import|export|snapshot|restore ..."
    parser.epilog = EPILOG
    add = parser.add_verbs()
    create = add("create", "create a disk of zeros", _create)
    _add_name(create)
    create.add_argument("size", metavar="SIZE", type=_size, help="size of the disk, such as 64M")
    create.add_argument("--preallocate", action="store_true", help="allocate all blocks now (default: sparse)")
    ls = add("ls", "list disks", _list)
    ls.add_argument("-q", "--quiet", action="store_true", help="print names only")
    ls.add_argument("--snapshots", action="store_true", help="list the snapshots of all disks instead")
    inspect = add("inspect", "show details of disks", _inspect)
    inspect.add_argument(
        "names", metavar="NAME|PATH", nargs="+", help="name of a disk; path of a file or device",
        type=lambda text: text if _is_path(text) else disk_name(text),
    )  # fmt: skip
    resize = add("resize", "change the size of a disk that no task has", _resize)
    _add_name(resize, "lvresize --size SIZE VG/LV, zfs set volsize=SIZE POOL/VOLUME, truncate --size=SIZE FILE")
    resize.add_argument("size", metavar="SIZE", type=_size, help="new size, such as 128M")
    resize.add_argument("--shrink", action="store_true", help="permit a smaller size, which loses the disk's end")
    remove = add("rm", "remove disks that no task has, or snapshots", _remove)
    remove.add_argument("--snapshots", action="store_true", help="remove the snapshots of the disks as well")
    remove.add_argument(
        "names", metavar="NAME[@SNAPSHOT]", nargs="+", type=disk_or_snapshot, help="name of a disk, or of a snapshot"
    )
    importing = add("import", "create a disk with the content of a file", _import)
    _add_name(importing)
    importing.add_argument("file", metavar="FILE", help="file with the content; '-': standard input")
    export = add("export", "write the content of a disk that no task has, or of a snapshot, to a file", _export)
    export.add_argument("name", metavar="NAME[@SNAPSHOT]", type=disk_or_snapshot, help="name of a disk or snapshot")
    export.add_argument("file", metavar="FILE", help="file to create; '-': standard output")
    snapshot = add("snapshot", "snapshot a disk, or all named disks of the task that uses it", _snapshot)
    _add_name(snapshot, "solo5ctl freeze TASK; lvcreate -s -n SNAPSHOT VG/LV, zfs snapshot; solo5ctl thaw TASK")
    snapshot.add_argument(
        "--as", metavar="SNAPSHOT", dest="snapshot", type=snapshot_name, help="name (default: the time in UTC)"
    )
    snapshot.add_argument(
        "--copy",
        action="store_true",
        help="copy the data where there are no reflinks; only while no task uses the disk",
    )
    restore = add("restore", "replace the content of a disk that no task has by a snapshot", _restore)
    _add_name(restore, "solo5ctl stop TASK; lvconvert --merge VG/SNAPSHOT, zfs rollback")
    restore.add_argument("snapshot", metavar="SNAPSHOT", type=snapshot_name, help="name of a snapshot of the disk")


def _add_name(parser: Parser, by_path: str = "") -> None:
    """Add the argument NAME; `by_path`: what does the same to a disk by path, which has its own tools."""

    def parse(text: str) -> DiskName:
        if by_path and _is_path(text):
            raise InvalidRequestError(
                f"{text!r} is a path: expected the name of a named disk (`solo5ctl disk ls`).",
                f"For a disk by path: {by_path}",
            )
        return disk_name(text)

    parser.add_argument("name", metavar="NAME", type=parse, help="name of the disk")


def _size(text: str) -> int:
    return quantities.value_of(quantities.size, text, "disk size")


def _is_path(text: str) -> bool:
    return "/" in text


def execute(arguments: Namespace, context: CommandContext) -> int:
    context.require_root()
    act: Callable[[Namespace, CommandContext], int] = arguments.act
    return act(arguments, context)


def _disks() -> NamedDisks:
    return NamedDisks(claims=DiskClaims(read_settings))


def _snapshots() -> Snapshots:
    return Snapshots(_disks())


def _create(arguments: Namespace, context: CommandContext) -> int:
    made = _disks().create(arguments.name, arguments.size, preallocate=arguments.preallocate)
    return context.show(arguments, lambda: _json(made), lambda: f"{made}\n")


def _resize(arguments: Namespace, context: CommandContext) -> int:
    resized = _disks().resize(arguments.name, arguments.size, shrink=arguments.shrink)
    return context.show(arguments, lambda: _json(resized), lambda: f"{resized}\n")


def _list(arguments: Namespace, context: CommandContext) -> int:
    snapshots = _snapshots().all() if arguments.snapshots else ()
    disks = () if arguments.snapshots else _disks().all()
    found: Sequence[NamedDisk | Snapshot] = (*disks, *snapshots)

    def text() -> str:
        if arguments.quiet:
            return "".join(f"{each}\n" for each in found)
        if arguments.snapshots:
            rows = [(str(each), size(each.size), size(each.allocated), moment(each.made)) for each in snapshots]
            return table(SNAPSHOT_HEADER, rows)
        return table(HEADER, [_row(disk, context.screen.now()) for disk in disks])

    return context.show(arguments, lambda: [_json(each) for each in found], text)


def _row(disk: NamedDisk, now: int) -> tuple[str, ...]:
    used = "now" if disk.task is not None else f"{span((now - disk.used) / 1_000_000)} ago"
    return disk.name, size(disk.size), size(disk.allocated), _holder(disk), used


def _holder(disk: NamedDisk | DiskPath) -> str:
    """Return the task that has a disk, `(in use)` for a reader, or nothing."""
    return "" if disk.task is None else disk.task or "(in use)"


def _inspect(arguments: Namespace, context: CommandContext) -> int:
    shown = [_at_path(name) if _is_path(name) else _named(name) for name in arguments.names]
    return context.show(
        arguments,
        lambda: [document for document, _ in shown],
        lambda: "\n".join(fields(pairs) for _, pairs in shown),
    )


def _at_path(path: str) -> tuple[dict[str, object], list[tuple[str, str]]]:
    """Return what `inspect` shows of a file or device, as JSON and as fields."""
    disk = inspect_path(path)
    return _json(disk), [
        ("Path", disk.path),
        ("Backing", disk.backing.value),
        ("Size", f"{size(disk.size)} ({disk.size} bytes)"),
        ("Sector size", "" if disk.sector_size is None else str(disk.sector_size)),
        ("Task", _holder(disk)),
        ("Kernel", disk.use),
    ]


def _named(name: DiskName) -> tuple[dict[str, object], list[tuple[str, str]]]:
    """Return the same of a named disk."""
    disk, snapshots = _disks().get(name), _snapshots().of(name)
    return _json(disk) | {"snapshots": [_json(each) for each in snapshots]}, [
        ("Name", disk.name),
        ("File", disk.path),
        ("Size", f"{size(disk.size)} ({disk.size} bytes)"),
        ("Allocated", size(disk.allocated)),
        ("Task", _holder(disk)),
        ("Last used", moment(disk.used)),
        *(("Snapshot", f"{each.name}, {size(each.size)}, {moment(each.made)}") for each in snapshots),
    ]


def _json(found: NamedDisk | DiskPath | Snapshot) -> dict[str, object]:
    """Return a disk or snapshot as a JSON object; unknown values are absent."""
    document = {key: value for key, value in vars(found).items() if value not in (None, "")}
    if "made" in document:  # a snapshot, which no task can have
        return document | {"made": moment(document["made"])}
    if "used" in document:
        document["last_used"] = moment(document.pop("used"))
    return document | {"in_use": vars(found)["task"] is not None}


def _remove(arguments: Namespace, context: CommandContext) -> int:
    snapshots = _snapshots()
    removed, status = [], 0
    for disk, name in arguments.names:
        try:
            if name is None:
                snapshots.remove_disk(disk, snapshots=arguments.snapshots)
            else:
                snapshots.remove(disk, name)
        except Solo5Error as error:  # the others are removed all the same
            context.screen.error(error)
            status = max(status, error.exit_status)
        else:
            removed.append(disk if name is None else f"{disk}@{name}")
    context.show(arguments, lambda: removed, lambda: "".join(f"{each}\n" for each in removed))
    return status


def _snapshot(arguments: Namespace, context: CommandContext) -> int:
    disk = _disks().get(arguments.name)
    # By default the time in UTC, which sorts as a name.
    name = arguments.snapshot or snapshot_name(moment(context.screen.now()).replace("-", "").replace(":", ""))
    if disk.task:
        return _snapshot_running(TaskName(disk.task), name, arguments, context)
    with context.screen.progress(disk.size) as show:
        made = _snapshots().take(disk.name, name, copy=arguments.copy, progress=show)
    return context.show(arguments, lambda: {"snapshots": [_json(made)]}, lambda: f"{made}\n")


def _snapshot_running(task: TaskName, name: SnapshotName, arguments: Namespace, context: CommandContext) -> int:
    if arguments.copy:
        raise InvalidRequestError(
            f"--copy: task {task} has disk {arguments.name!r}, and would be frozen for the whole copy.",
            f"Stop it first: solo5ctl stop {task}",
        )
    with _snapshots().of_task(task, name) as instant:
        pause = context.run(lambda engine: engine.while_frozen(task, instant.take, instant.prepare))
        made = instant.keep()
    if arguments.json:
        document = {"snapshots": [_json(each) for each in made], "task": task}
        others = [{"disk": each["disk"], "path": each["path"]} for each in instant.left_out]
        context.screen.json(document | {"pause_ms": round(pause * 1000, 3), "left_out": others})
    else:
        context.screen.write("".join(f"{each}\n" for each in made))
        context.screen.message(f"task {task} was frozen {f'for {pause * 1000:.1f} ms' if pause else 'already'}.")
        for each in instant.left_out:
            context.screen.message(
                f"disk {each['disk']} ({each['path']}) of task {task} has no snapshot: expected a named disk."
            )
    return 0


def _restore(arguments: Namespace, context: CommandContext) -> int:
    disk = _disks().get(arguments.name)
    with context.screen.progress(disk.size) as show:
        restored = _snapshots().restore(disk.name, arguments.snapshot, show)
    return context.show(arguments, lambda: _json(restored), lambda: f"{restored}\n")


def _import(arguments: Namespace, context: CommandContext) -> int:
    source = _opened(arguments.file) if arguments.file != "-" else os.dup(sys.stdin.fileno())
    try:
        with context.screen.progress(os.fstat(source).st_size) as show:  # a pipe has none
            disk, sha256 = _disks().import_(arguments.name, source, show)
    finally:
        os.close(source)
    return context.show(arguments, lambda: _json(disk) | {"sha256": sha256}, lambda: f"{sha256}  {disk.name}\n")


def _check_source(path: str, place: str, source: int) -> None:
    """Check that no other user has led the path to a file that the user may not read."""
    status, way = os.fstat(source), way_of(path)
    if stat.S_ISFIFO(status.st_mode):  # such as of a shell's <(command), which has no path
        return
    if way is not None and str(way.place) == place:  # else the way has changed since the file was opened
        is_public = not way.of_links and stat.S_ISREG(status.st_mode) and status.st_mode & stat.S_IROTH
        # What every user may read is no gain for who changed the way.
        if is_public or way.changers <= {os.geteuid(), status.st_uid}:
            return
    raise InvalidRequestError(
        f"{path!r} resolves to a file of user {status.st_uid}, by a directory that another user can change: "
        "expected a file of that user, or one that every user may read.",
        "Name the file itself, or move it to a directory of root's.",
    )


def _export(arguments: Namespace, context: CommandContext) -> int:
    to_stdout, (name, snapshot) = arguments.file == "-", arguments.name
    if to_stdout and arguments.json:
        raise InvalidRequestError("--json and FILE - are mutually exclusive: standard output has the disk.")
    exported = _disks().get(name) if snapshot is None else _snapshots().get(name, snapshot)
    sha256 = ""

    def write(target: int) -> None:
        nonlocal sha256
        with context.screen.progress(exported.size) as show:
            if snapshot is None:
                sha256 = _disks().export(name, target, show)
            else:
                sha256 = _snapshots().export(name, snapshot, target, show)

    if to_stdout:
        write(sys.stdout.fileno())
    else:
        _write_new(arguments.file, write)
    if arguments.json:
        context.screen.json(_json(exported) | {"sha256": sha256})
    else:
        line = f"{sha256}  {exported}"
        context.screen.message(line) if to_stdout else context.screen.write(f"{line}\n")
    return 0


def _write_new(path: str, write: Callable[[int], None]) -> None:
    """Create a file, which gets its name when it is complete."""
    file = Path(path)
    with closing(open_directory(file.parent)) as directory, host_errors(f"{path!r} cannot be written"):
        # Looked at first, since the copy would fail at its end only.
        if os.path.lexists(within(directory, file.name)) or not create_file(directory, file.name, write):
            raise TakenError(f"{path!r} exists: expected the path of a new file.", "Remove it, or write to another.")


def _opened(path: str) -> int:
    found, place = open_path(repr(path), path, ())
    with closing(found), host_errors(f"{path!r} cannot be opened"):
        _check_source(path, place, found)
        return os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY)
