"""Clears up after the end of a declared task: ExecStopPost= of solo5-prepare@NAME.service.

Apart from the preparation, of whose modules it needs few: each end of a declared task imports this.
"""

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from signal import SIGABRT
from typing import TYPE_CHECKING, Any

from solo5_systemd.base.atomic_file import replace_file
from solo5_systemd.base.declared_units import (
    DIRECTORY,
    STDERR,
    TENDER,
    declared_service,
    forget_instance,
    prepared_fields,
    stderr_lines,
)
from solo5_systemd.base.errors import HostError, Solo5Error
from solo5_systemd.base.journal_entry import write_entry
from solo5_systemd.base.mounts import detach
from solo5_systemd.base.names import TaskName, declared_outcome_target, is_instance, is_task_name, task_name, user_of
from solo5_systemd.base.sanitize import printable
from solo5_systemd.dbus import fdstore
from solo5_systemd.dbus.process import log_about
from solo5_systemd.engine.backends import host_backends
from solo5_systemd.pid1.kept_declarations import UNCLEARED, is_cleared, remove_if_gone
from solo5_systemd.settings.files import read_settings
from solo5_systemd.storage.locks import holders
from solo5_systemd.task.log_fields import FACILITY, LOG_NAMESPACE, STDERR_PRIORITY
from solo5_systemd.unit.state import OVER, MainCode, UnitState
from solo5_systemd.users.userdb_records import RECORDS

if TYPE_CHECKING:
    from solo5_systemd.engine.backends import Backends
    from solo5_systemd.storage.backing_files import ImageFiles
    from solo5_systemd.unit.outcome import Outcome

ENVIRONMENT = "environment"
"""Without this file the task's service does not start."""

HELD = "held"
_REPORTED = "reported"
"""The file with the invocation of the run whose end was reported: a start that fails has no end of its own."""

_STATUSES = (1, 255)
"""Of a tender that refuses, unless an assertion of it fails; and of an abort."""

_WARNING = 4
"""A priority of syslog(3)."""

NO_CONFIGURATION = 0o660
"""The mode of root's files with text of a tender: as root's group may write them, `own_files` refuses them also where a
link of root's refers to them."""

_BARRIER_TIMEOUT_S = 10.0
_LOCKS_POLL_S = 0.02


async def clear(name: TaskName) -> None:
    """Log what the tender wrote to stderr, and remove what the start needed."""
    own = Path(DIRECTORY) / name
    (own / ENVIRONMENT).unlink(missing_ok=True)
    (RECORDS / f"{user_of(name)}.user").unlink(missing_ok=True)
    await asyncio.to_thread(_log_stderr, name)
    async with host_backends(read_settings) as backends:  # not read here: they may be invalid by now
        await drop_held(name, backends.disks)
        with suppress(Solo5Error):  # of the journal
            await _withhold(name, own, backends)
        if not await asyncio.to_thread(is_cleared, name):
            await backends.units.stop(declared_outcome_target(name))
            await backends.networks.forget(name)
            await backends.users.release(name)
            await asyncio.to_thread(remove_if_gone, name)
        # Removed meanwhile, perhaps before the unmount above.
        if is_instance(name) and await backends.units.active_state(declared_outcome_target(name)) in OVER:
            forget_instance(name)
    (own / UNCLEARED).unlink(missing_ok=True)


async def _withhold(name: TaskName, own: Path, backends: "Backends") -> None:
    """Report an end after which a restart cannot help, and cancel a restart that would be made all the same."""
    ended = await backends.units.ended_run(name)
    if ended is None or ended.restart == "no" or ended.result == "success" or not own.exists():
        return
    from solo5_systemd.unit.outcome import outcome  # imported here for startup time: most ends are none to report

    with suppress(OSError):
        if (own / _REPORTED).read_text(encoding="utf-8") == ended.invocation:
            return
    if ended.queued and (ended.on_failure or not may_be_withheld(ended)):  # OnFailure= would never be followed
        return
    await backends.console.sync(name, ended.log_namespace)
    found = outcome(ended, await backends.console.exit_messages(ended))
    sentence = not_restarted(name, found, ended.restart)
    if not sentence or (ended.queued and not found.fails_at_start):  # a long run that ended so is to be started again
        return
    if ended.queued:
        await backends.units.stop(declared_service(name))
    report(name, sentence)
    with suppress(OSError):
        replace_file(own / _REPORTED, ended.invocation)


def may_be_withheld(state: UnitState) -> bool:
    """Return whether `Outcome.fails_at_start` may be true of a run: without the journal, whose lines take a moment."""
    by_itself = state.main_code == MainCode.EXITED and state.main_status in _STATUSES
    return by_itself or (state.main_code != MainCode.EXITED and state.main_status == SIGABRT)


def not_restarted(name: str, found: "Outcome", restart: str) -> str:
    """Return what is reported of a run after which no start follows; empty where a restart could help."""
    if restart == "no" or found.clean or found.retry:
        return ""
    return f"{found.verdict}. Restart={restart} does not start it again. After a change: systemctl start {name}"


async def _stop_outcome(name: TaskName) -> None:
    async with host_backends(read_settings) as backends:
        await backends.units.stop(declared_outcome_target(name))


async def drop_held(name: TaskName, disks: "ImageFiles") -> None:
    """Release the locks of the last start, whose tender has ended, and remove what they protected."""
    for fds in fdstore.restored().values():
        for fd in fds:
            os.close(fd)
    fdstore.remove(HELD)
    await asyncio.to_thread(fdstore.barrier, _BARRIER_TIMEOUT_S)
    # A removed instance has no directory any more. With 1,000 disks, all locks are read in 28 ms.
    own = Path(DIRECTORY, name)
    has_disks = any(own.glob("disks/*")) or not own.exists()
    # PID 1 closes descriptors in a thread (asynchronous_close), also after the barrier.
    end = time.monotonic() + _BARRIER_TIMEOUT_S
    while has_disks and name in (await asyncio.to_thread(holders)).values() and time.monotonic() < end:  # noqa: ASYNC110
        await asyncio.sleep(_LOCKS_POLL_S)
    await disks.sweep()


def report(name: TaskName, sentence: str) -> None:
    """Log a sentence about a task, as a warning of its service."""
    log_about(declared_service(name), sentence, priority=_WARNING)


def unmount(directory: Path) -> None:
    """Unmount all that is mounted there."""
    while os.path.ismount(directory):
        detach(str(directory))


def _log_stderr(name: TaskName) -> None:
    """Copy the tender's messages to the journal, as those of its unit: PID 1 opens one stream for stdout and stderr."""
    own = Path(DIRECTORY) / name
    lines = stderr_lines(name)
    if not os.path.ismount(own / TENDER):  # the preparation had failed before
        return
    with suppress(OSError):  # a full /run is no reason to keep the mount, or the locks
        replace_file(own / STDERR, "".join(f"{line}\n" for line in lines), mode=NO_CONFIGURATION)
    unmount(own / TENDER)
    namespace = prepared_fields(name).get(LOG_NAMESPACE, "")
    for line in lines:
        write_entry(
            {
                "MESSAGE": printable(line),
                "PRIORITY": STDERR_PRIORITY,
                "SYSLOG_FACILITY": FACILITY,
                "SYSLOG_IDENTIFIER": name,
                "SOLO5_TASK": name,
                "OBJECT_SYSTEMD_UNIT": declared_service(name),
            },
            namespace,
        )


def main(words: Sequence[str]) -> int:
    """Clear up, or stop the target of a refused task's outcome: there is nothing else of it."""
    if not is_task_name(words[-1]):
        asyncio.run(_stop_outcome(TaskName(words[-1])))
        return 0
    return run(clear, words[-1])


def run(act: Callable[[TaskName], Coroutine[Any, Any, None]], word: str) -> int:
    """Do something for a task; an error goes to the journal, where `systemctl status` of the task shows it."""
    try:
        asyncio.run(act(task_name(word)))
    except (Solo5Error, OSError) as error:
        failed = error if isinstance(error, Solo5Error) else HostError(f"{act.__name__} failed: {error}.")
        log_about(declared_service(TaskName(word)), str(failed))
        return failed.exit_status
    return 0
