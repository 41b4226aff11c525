"""The last repairs, newest first, with their times: one file in /run, so that a restart of the service keeps them.

`solo5ctl network` reads the file, without a call of the service. The journal has every repair as a line of
solo5-networkd.service.
"""

import json
import time
from contextlib import suppress
from pathlib import Path

from solo5_systemd.base.atomic_file import replace_file
from solo5_systemd.base.decode import Fields, json_document
from solo5_systemd.base.errors import Solo5Error
from solo5_systemd.base.names import task_name
from solo5_systemd.network.model import RecordedRepair, Repair

FILE = "repairs.json"
REPAIRS_MAX = 50
TASKS_MAX = 20
"""Names of tasks of one repair that are recorded. A repair of the tables concerns every task."""


def read_repairs(directory: Path) -> tuple[RecordedRepair, ...]:
    """Return the recorded repairs, newest first; none where the file is missing or damaged."""
    with suppress(OSError, Solo5Error):
        fields = Fields(json_document((directory / FILE).read_bytes(), FILE))
        return tuple(map(_repair, fields.tables("repairs")))
    return ()


def record_repair(repair: Repair, directory: Path) -> None:
    """Add a repair to the file; one that cannot be written is in the journal only."""
    new = RecordedRepair(
        time=time.time_ns() // 1000,
        what=repair.what,
        tasks=tuple(repair.tasks[:TASKS_MAX]),
        others=max(0, len(repair.tasks) - TASKS_MAX),
    )
    kept = (new, *read_repairs(directory))[:REPAIRS_MAX]
    document = [{"time": each.time, "what": each.what, "tasks": each.tasks, "others": each.others} for each in kept]
    with suppress(OSError):
        replace_file(directory / FILE, json.dumps({"repairs": document}))


def _repair(fields: Fields) -> RecordedRepair:
    return RecordedRepair(
        time=fields.integer("time", low=0, high=1 << 53),
        what=fields.text("what"),
        tasks=tuple(map(task_name, fields.texts("tasks"))),
        others=fields.integer("others", low=0, high=1 << 31),
    )
