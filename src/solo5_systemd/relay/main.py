"""The D-Bus service solo5-relay (org.solo5.Relay1): D-Bus activated, exits when no console is forwarded."""

import os
import stat
from collections.abc import Mapping, Sequence

from solo5_systemd.base.concurrency import KeyedLocks
from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.base.names import TaskName, log_namespace, task_name
from solo5_systemd.dbus import fdstore, process
from solo5_systemd.dbus.interfaces import RELAY1
from solo5_systemd.dbus.message_bus import connect
from solo5_systemd.dbus.service import Handler, Service
from solo5_systemd.journal.lines import Stream
from solo5_systemd.relay.forwarder import Forwarder
from solo5_systemd.relay.state_files import STATE_DIRECTORY, StateFiles

IDLE_TIMEOUT_S = 10.0


def handlers(forwarder: Forwarder) -> Mapping[str, Handler]:
    """Return the methods of org.solo5.Relay1, from and to D-Bus values; calls for one task are serialized."""
    task_locks = KeyedLocks[TaskName]()

    async def forward(namespace: str, name: str, unit: str, since: int, stdout: int, stderr: int) -> None:
        task = task_name(name)
        if namespace:
            log_namespace(namespace)
        for stream, fd in (("stdout", stdout), ("stderr", stderr)):
            if not stat.S_ISFIFO(os.fstat(fd).st_mode):
                raise InvalidRequestError(f"the descriptor for {stream} of task {task} is not a FIFO.")
        async with task_locks[task]:
            forwarder.forward(task, unit, since, {Stream.STDOUT: stdout, Stream.STDERR: stderr}, namespace)

    async def drain(name: str) -> Sequence[object]:
        task = task_name(name)
        async with task_locks[task]:
            return [await forwarder.drain(task)]

    async def list_tasks() -> Sequence[object]:
        return [list(forwarder.tasks)]

    return {"Forward": forward, "Drain": drain, "List": list_tasks}


def main() -> int:
    """Run the service; return the exit status."""
    return process.run(_serve())


async def _serve() -> bool:
    bus = await connect()
    forwarder = Forwarder(StateFiles(STATE_DIRECTORY), lambda task, lines: service.emit("Gap", [task, lines]))
    forwarder.restore(fdstore.restored())
    service = Service(bus, RELAY1, handlers(forwarder), lambda: bool(forwarder.tasks))
    needed = await process.serve_with(bus, service.serve(IDLE_TIMEOUT_S), forwarder.run())
    forwarder.close()
    return needed
