"""What the classes of the service share that release, start, put to sleep and wake tasks."""

import asyncio
from dataclasses import dataclass, field

from solo5_systemd.base.concurrency import KeyedLocks, SerialThread
from solo5_systemd.base.names import TaskName
from solo5_systemd.networkd.namespaces import Namespaces
from solo5_systemd.networkd.task_units import TaskUnits
from solo5_systemd.networkd.watches import Watches


@dataclass(frozen=True, kw_only=True)
class Core:
    """The state of the service, and the means to change it.

    Attributes:
        state: of all networks; its only user is the writer.
        writer: the thread of `state`.
        units: of tasks.
        watches: of changes by other programs, and of packets.
        tasks: the group of what the service does in the background.
        locks: of tasks; held during each change of one.
    """

    state: Namespaces
    writer: SerialThread
    units: TaskUnits
    watches: Watches
    tasks: asyncio.TaskGroup = field(default_factory=asyncio.TaskGroup)
    locks: KeyedLocks[TaskName] = field(default_factory=KeyedLocks)
