"""A task's name on this host, derived from Nomad's task ID alone, so that stop and destroy need no stored state."""

import hashlib
import re

from solo5_systemd.names import TaskName, task_name

_SLUG = 40
_UNFIT = re.compile(r"[^A-Za-z0-9_.]+", re.ASCII)


def name_of(task_id: str) -> TaskName:
    """Return the name of a task ID, such as `web-3fa85f64-9c1185a5c5e9`.

    Task and allocation are for readers, and the hash makes it unique. An ID is `ALLOCATION/TASK/RANDOM`, new for each
    start; any other text has a name, too.
    """
    allocation, _, rest = task_id.partition("/")
    task = rest.rpartition("/")[0] or allocation
    digest = hashlib.sha256(task_id.encode("utf-8", "surrogateescape")).hexdigest()[:12]
    return task_name("-".join((_slug(task) or "task", _slug(allocation)[:8] or "none", digest)))


def stem(name: TaskName) -> str:
    """Return the common prefix of the names of all starts of one task of an allocation: the name without its hash."""
    return name.rpartition("-")[0] + "-"


def _slug(text: str) -> str:
    return _UNFIT.sub("_", text)[:_SLUG].lstrip("_.")
