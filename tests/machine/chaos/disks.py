"""The disks of a history: named disks, private copies of a golden image, archives; and what is left of them."""

import re
import shutil
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from tests.machine import records
from tests.machine.chaos.lines import numbers
from tests.machine.chaos.model import DISKS, PREFIX, SERVED, Guest, Task, disk_name
from tests.machine.conftest import ok, systemctl
from tests.machine.records import newest

from solo5_systemd.base.paths import identity
from solo5_systemd.storage.locks import holders

PLACE = Path("/var/lib/solo5/disks")
STATE = "/var/lib/solo5/"
GOLDEN = f"{PREFIX}golden"
NEWEST_OF_GOLDEN = 200
FILE = Path("/srv/chaos/word")
"""What `solo5ctl` archives; a job has a template of the same content."""

CONTENT = "chaos"
SIZE = "64K"
SECTORS = 128

_FOR_A_WHILE = ("/run/solo5/binds", "/run/solo5/pauses")
"""Directories that have something only while a task is started, or frozen for a snapshot."""

_OF_STARTS = ("/run/solo5/memory", "/var/lib/solo5/copies")
"""Directories that have one entry more for each declared task that runs: PID 1 starts it again without its archive."""


def set_up() -> None:
    """Make the golden image and the file, on XFS where the machine has its tools: for snapshots of running tasks."""
    if records.can_share_blocks():
        records.mount(PLACE)
    ok("solo5ctl", "disk", "create", GOLDEN, SIZE)
    (PLACE / GOLDEN).write_bytes(records.records(NEWEST_OF_GOLDEN, SECTORS))
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(CONTENT)


def tear_down() -> None:
    """Remove all disks of the history, and nothing else."""
    shutil.rmtree(FILE.parent)
    for disk in ok("solo5ctl", "disk", "ls", "--quiet").split():
        if disk.startswith(PREFIX):
            ok("solo5ctl", "disk", "rm", "--snapshots", disk)
    if records.can_share_blocks():
        records.unmount(PLACE)


def by_ctl(task: Task) -> tuple[str, ...]:
    """Return the options of `solo5ctl run` for the disks of a task's guest."""
    disk = task.disk_name
    if task.guest is not Guest.WRITES:
        return ("--block", f"storage=disk:{disk},create,size={SIZE}") if disk else ()
    blocks = (f"data=disk:{disk},create,size={SIZE}", f"scratch=disk:{GOLDEN},ephemeral", f"config=files:{FILE}")
    return tuple(word for block in blocks for word in ("--block", block))


def by_nomad(task: Task) -> tuple[str, str]:
    """Return the same in the task's config, and in the task."""
    disk = task.disk_name
    if task.guest is not Guest.WRITES:
        config = f'block "storage" {{\n  disk   = "{disk}"\n  create = true\n  size   = "{SIZE}"\n}}\n'
        return f"\n{config}" if disk else "", ""
    config = f"""
block "data" {{
  disk   = "{disk}"
  create = true
  size   = "{SIZE}"
}}
block "scratch" {{
  disk      = "{GOLDEN}"
  ephemeral = true
}}
block "config" {{
  files = ["local/word"]
}}
"""
    return config, f'template {{\n  data        = "{CONTENT}"\n  destination = "local/word"\n}}\n'


def by_file(disk: str) -> str:
    """Return the same as lines of a declaration."""
    return (
        f"Block=data=disk:{disk},create,size={SIZE}\nBlock=scratch=disk:{GOLDEN},ephemeral\nBlock=config=files:{FILE}\n"
    )


class Written:
    """What guests have reported as written, by disk: it never gets less."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._begun: set[str] = set()

    def complaints(self, task: str, disk: str, log: str) -> Iterator[str]:
        """Return what its disks lack, by the console of a guest."""
        begins = list(re.finditer(r"(?m)^data: newest (\d+)\n", log))
        if not begins:
            return  # it has not read its disk yet
        base, run = int(begins[-1][1]), log[begins[-1].end() :]
        if task not in self._begun:
            self._begun.add(task)
            if base < (before := self._last.get(disk, 0)):
                yield f"it found {base} records on {disk}, which had {before}"
        reported = base + max(numbers(run), default=0)
        self._last[disk] = max(reported, self._last.get(disk, 0))
        if (found := newest(PLACE / disk)) < reported:
            yield f"{disk} has {found} records, and it reported {reported}"
        for line in (f"scratch: newest {NEWEST_OF_GOLDEN}\n", f"config: '{CONTENT}'\n"):
            if numbers(run) and line not in run:
                yield f"it has not read {line!r}"


def left(
    writers: Mapping[str, str], locks: Mapping[str, int], used: Collection[str], declared: int = 0
) -> Iterator[str]:
    """Return what there is of disks and should not be, and the reverse.

    Args:
        writers: tasks that run, each with its named disk.
        locks: how many disks each of them has.
        used: the disks of all tasks that there are.
        declared: how many of the writers are declared tasks.
    """
    held = holders()
    if (found := Counter(held.values())) != Counter(locks):
        yield f"locked disks: {dict(found)}, expected {dict(locks)}"
    for task, disk in writers.items():
        with suppress(FileNotFoundError):  # the lock of another file is in the count above
            if (writer := held.get(identity((PLACE / disk).stat()))) != task:
                yield f"disk {disk} is that of {writer}, expected {task}"
    for place in _FOR_A_WHILE:
        yield from (f"{path} is nobody's" for path in Path(place).glob("*"))
    for place in _OF_STARTS:
        if len(there := sorted(map(str, Path(place).glob("*")))) != declared:
            yield f"{place} has {there}, and {declared} declared tasks write"
    for line in Path("/proc/mounts").read_text().splitlines():
        if (point := line.split()[1]).startswith(tuple(f"{place}/" for place in _FOR_A_WHILE)):
            yield f"mount {point} is nobody's"
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):  # a container shows those of its host, too
        with suppress(OSError):  # it was detached just now
            if (file := backing.read_text().strip()).startswith(STATE):
                yield f"{backing.parts[3]} of {file} is nobody's"
    for unit in systemctl("list-units", "--plain", "--no-legend", "solo5-thaw@*").splitlines():
        yield f"unit {unit.split()[0]} is nobody's"
    yield from _files(used)


def _files(used: Collection[str]) -> Iterator[str]:
    known = {GOLDEN, *(disk_name(number) for number in range(DISKS + SERVED))}
    for path in PLACE.iterdir():
        if path.name not in known:
            yield f"{path} is nobody's"
        elif path.name not in used and path.stat().st_uid:
            yield f"{path} is that of user {path.stat().st_uid}, and no task's"
    with suppress(FileNotFoundError):  # no history
        if sha256((PLACE / GOLDEN).read_bytes()).digest() != _DIGEST:
            yield f"{GOLDEN} has changed"


_DIGEST = sha256(records.records(NEWEST_OF_GOLDEN, SECTORS)).digest()
