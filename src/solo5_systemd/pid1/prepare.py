"""solo5-prepare@NAME.service: prepares each start of a declared task, and clears up after its end.

    prepare NAME           before the tender is executed
    prepare --clear NAME   after the task has ended

PID 1 stores the descriptors that hold locks with this unit, until the task's service has stopped and with it this unit.

The task's service wants the unit, and asserts what it makes. What the unit file has, and why:

    Wants=dbus.socket           not Requires=: a soft reboot stops the bus, and would stop this unit of a task that
                                survives it
    PartOf=, StopWhenUnneeded=  started again with each start of the task, and stopped when it has ended
    RefuseManualStop=           the locks of a running task's disks would be lost
    IgnoreOnIsolate=            the same, of a task whose service has IgnoreOnIsolate=yes
    StartLimitIntervalSec=0     the restarts of the task are limited by its own service
    the second ExecStopPost=    where the first was killed: nothing else would remove a mount and a user of a task that
                                is not started again
"""

import asyncio
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from solo5_systemd.base.atomic_file import replace_file
from solo5_systemd.base.declared_units import (
    DIRECTORY,
    FIELDS,
    STDERR,
    STDERR_MAX,
    TENDER,
    declaration_directory,
    declared_service,
    forget_instance,
    prepared_fields,
    stderr_lines,
)
from solo5_systemd.base.errors import HostError, InvalidRequestError, Solo5Error
from solo5_systemd.base.journal_entry import NATIVE_SOCKET, write_entry
from solo5_systemd.base.mounts import detach, mount_bounded
from solo5_systemd.base.names import (
    TaskName,
    declared_outcome_target,
    is_instance,
    is_task_name,
    task_name,
    task_namespace,
    template_of,
)
from solo5_systemd.base.sanitize import printable
from solo5_systemd.dbus import fdstore
from solo5_systemd.dbus.process import log_about
from solo5_systemd.declared.declaration import parse_declaration
from solo5_systemd.declared.files import host_names
from solo5_systemd.declared.restarts import is_withheld, may_be_withheld, not_restarted
from solo5_systemd.declared.unit_file import environment, user_of
from solo5_systemd.engine.prepare import Prepared, Preparer
from solo5_systemd.journal.journald import namespace_path
from solo5_systemd.network import task_namespaces
from solo5_systemd.pid1.kept_declarations import (
    UNCLEARED,
    Basis,
    is_cleared,
    kept_basis,
    kept_refusal,
    kept_sources,
    remove_if_gone,
    systemd_release,
    unseen,
)
from solo5_systemd.settings.files import read_settings
from solo5_systemd.storage.lock_records import holders
from solo5_systemd.task.log_fields import FACILITY, LOG_NAMESPACE, STDERR_PRIORITY
from solo5_systemd.unit.translate import log_fields
from solo5_systemd.users.user_record import user_record
from solo5_systemd.users.userdb_records import RECORDS
from solo5_systemd.wiring.engine import machine

if TYPE_CHECKING:
    from solo5_systemd.storage.backing_files import ImageFiles
    from solo5_systemd.wiring.engine import Machine

ENVIRONMENT = "environment"
"""Without this file the task's service does not start."""

_HELD = "held"
_REPORTED = "reported"
"""The file with the invocation of the run whose end was reported: a start that fails has no end of its own."""

_WARNING = 4
"""A priority of syslog(3)."""

_NO_CONFIGURATION = 0o660
"""The mode of root's files with text of a tender: as root's group may write them, `own_files` refuses them also where a
link of root's refers to them."""

_BARRIER_TIMEOUT_S = 10.0
_LOCKS_POLL_S = 0.02


async def prepare(name: TaskName) -> None:
    """Make all that the unit file of a task refers to.

    Raises:
        Solo5Error: the task cannot start.
    """
    own = Path(DIRECTORY) / name
    with _written(own):
        (own / ENVIRONMENT).unlink(missing_ok=True)
    if sentence := kept_refusal(name):
        raise InvalidRequestError(sentence)
    sources = kept_sources(name)
    with _written(own):
        own.mkdir(mode=0o755, exist_ok=True)  # of an instance, whose template has been read
        (own / UNCLEARED).touch()
    settings = read_settings()
    served = settings.served
    declaration = parse_declaration(name, sources, host=host_names(), served=served, systemd=systemd_release())
    async with machine(lambda: settings) as backends:
        if declaration.workload.idle_stops:
            await backends.units.begin(declared_outcome_target(name))
        await _drop_held(name, backends.disks)
        with unseen(sources):
            prepared = await Preparer(backends, partial(_report, name)).prepare(declaration.workload)
        try:
            await _check_basis(prepared)
            with _written(own), unseen(sources):
                _write(own, prepared)
            fdstore.store(_HELD, prepared.held)
        except BaseException:
            await backends.networks.release(name)
            raise


@contextmanager
def _written(own: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise HostError(
            f"{error.filename or own} cannot be written: {error.strerror}: expected room in a file system that is not "
            "read-only.",
            f"See: findmnt --target {own}; df {own}",
        ) from error


def _report(name: TaskName, sentence: str) -> None:
    log_about(declared_service(name), sentence, priority=_WARNING)


async def clear(name: TaskName) -> None:
    """Log what the tender wrote to stderr, and remove what the start needed."""
    own = Path(DIRECTORY) / name
    (own / ENVIRONMENT).unlink(missing_ok=True)
    (RECORDS / f"{user_of(name)}.user").unlink(missing_ok=True)
    await asyncio.to_thread(_log_stderr, name)
    async with machine(read_settings) as backends:  # not read here: they may be invalid by now
        await _drop_held(name, backends.disks)
        with suppress(Solo5Error):  # of the journal
            await _withhold(name, own, backends)
        if not await asyncio.to_thread(is_cleared, name):
            await backends.units.stop(declared_outcome_target(name))
            await backends.networks.forget(name)
            await backends.users.release(name)
            await asyncio.to_thread(remove_if_gone, name)
        # Removed meanwhile, perhaps before the unmount above.
        if is_instance(name) and name not in await backends.units.outcome_targets():
            forget_instance(name)
    (own / UNCLEARED).unlink(missing_ok=True)


async def _withhold(name: TaskName, own: Path, backends: "Machine") -> None:
    """Report an end after which a restart cannot help, and cancel a restart that would be made all the same."""
    run = await backends.units.ended_run(name)
    if run is None or run.restart == "no" or run.state.result == "success" or not own.exists():
        return
    if _reported(own) == run.state.invocation:
        return
    if run.queued and (run.on_failure or not may_be_withheld(run.state)):  # OnFailure= would never be followed
        return
    from solo5_systemd.unit.outcome import outcome

    await backends.console.sync(name, run.state.log_namespace)
    found = outcome(run.state, await backends.console.exit_messages(run.state))
    sentence = not_restarted(name, found, run.restart)
    if not sentence or (run.queued and not is_withheld(found)):
        return
    if run.queued:
        await backends.units.stop(declared_service(name))
    _report(name, sentence)
    with suppress(OSError):
        replace_file(own / _REPORTED, run.state.invocation)


def _reported(own: Path) -> str:
    """Return the invocation whose end has been reported."""
    try:
        return (own / _REPORTED).read_text(encoding="utf-8")
    except OSError:
        return ""


async def _stop_outcome(name: TaskName) -> None:
    async with machine(read_settings) as backends:
        await backends.units.stop(declared_outcome_target(name))


async def _drop_held(name: TaskName, disks: "ImageFiles") -> None:
    """Release the locks of the last start, whose tender has ended, and remove what they protected."""
    for fds in fdstore.restored().values():
        for fd in fds:
            os.close(fd)
    fdstore.remove(_HELD)
    await asyncio.to_thread(fdstore.barrier, _BARRIER_TIMEOUT_S)
    await asyncio.to_thread(_await_unlocked, name)
    await disks.sweep()


def _await_unlocked(name: TaskName) -> None:
    """Wait for the locks: PID 1 closes descriptors in a thread (asynchronous_close), also after the barrier."""
    end = time.monotonic() + _BARRIER_TIMEOUT_S
    while name in holders().values() and time.monotonic() < end:
        time.sleep(_LOCKS_POLL_S)


async def _check_basis(prepared: Prepared) -> None:
    """Refuse an image for which the unit file was not made: another tender, or NICs where there were none.

    An image without NICs gets the namespace of a unit file for NICs that were assumed.
    """
    parts = prepared.plan.parts
    name = parts.workload.name
    had = kept_basis(name)
    now = Basis.of(parts.tender, parts.image.facts.manifest, parts.workload.arguments)
    if had.fits(now):
        if had.nics and not now.nics:
            await asyncio.to_thread(task_namespaces.make, task_namespace(name))
        return
    kept = Path(declaration_directory(name)).name
    if kept == template_of(name):
        raise HostError(
            f"{parts.workload.image} with {now} is not what the unit file of {kept} was made for: expected {had}, "
            "as for the other instances, and {mirage} in the same arguments.",
            f"Run: systemctl daemon-reload. Where instances differ, write /etc/solo5/{name}.unikernel for this one.",
        )
    raise HostError(
        f"{parts.workload.image} with {now} is not what the unit file was made for: expected {had}.",
        "Run: systemctl daemon-reload",
    )


def _write(own: Path, prepared: Prepared) -> None:
    parts = prepared.plan.parts
    name = parts.workload.name
    _make_room_for_stderr(own)
    disks = own / "disks"
    disks.mkdir(mode=0o755, exist_ok=True)
    for left in disks.iterdir():
        left.unlink()
    for disk in prepared.disks:
        (disks / disk.disk).symlink_to(disk.path)
    with suppress(FileNotFoundError):
        (own / "image").unlink()
    (own / "image").symlink_to(parts.image.path)
    user = user_of(name)
    replace_file(RECORDS / f"{user}.user", user_record(parts.user, name, user), mode=0o644)
    replace_file(own / FIELDS, json.dumps(dict(log_fields(parts))), mode=0o644)
    replace_file(own / ENVIRONMENT, environment(prepared.devices, prepared.arguments), mode=0o600)


def _make_room_for_stderr(own: Path) -> None:
    """Mount the directory for what the tender writes: a taken-over tender must not fill /run."""
    directory = own / TENDER
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        _unmount(directory)
        mount_bounded(str(directory), STDERR_MAX)
        directory.chmod(_NO_CONFIGURATION | 0o110)
    except OSError as error:
        raise HostError(f"{directory} cannot be mounted: {error.strerror}.") from error


def _unmount(directory: Path) -> None:
    while os.path.ismount(directory):
        detach(str(directory))


def _log_stderr(name: TaskName) -> None:
    """Copy the tender's messages to the journal, as those of its unit: PID 1 opens one stream for stdout and stderr."""
    own = Path(DIRECTORY) / name
    lines = stderr_lines(name)
    if not os.path.ismount(own / TENDER):  # the preparation had failed before
        return
    with suppress(OSError):  # a full /run is no reason to keep the mount, or the locks
        replace_file(own / STDERR, "".join(f"{line}\n" for line in lines), mode=_NO_CONFIGURATION)
    _unmount(own / TENDER)
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
            namespace_path(NATIVE_SOCKET, namespace),
        )


def main(words: Sequence[str]) -> int:
    """Prepare or clear; an error goes to the journal, where `systemctl status` of the task shows it."""
    act = clear if words[:1] == ["--clear"] else prepare
    if act is clear and not is_task_name(words[-1]):  # it was refused: there is nothing but the target of its outcome
        asyncio.run(_stop_outcome(TaskName(words[-1])))
        return 0
    try:
        name = task_name(words[-1])
        asyncio.run(act(name))
    except (Solo5Error, OSError) as error:
        failed = error if isinstance(error, Solo5Error) else HostError(f"{act.__name__} failed: {error}.")
        log_about(declared_service(TaskName(words[-1])), str(failed))
        return failed.exit_status
    return 0
