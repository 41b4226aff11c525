"""Prepares each start of a declared task, before the tender is executed: ExecStart= of solo5-prepare@NAME.service.

PID 1 stores the descriptors that hold locks with this unit, until the task's service has stopped and with it this unit.

The task's service wants the unit, and asserts what it makes. What the unit file has, and why:

    Wants=dbus.socket           not Requires=: a soft reboot stops the bus, and would stop this unit of a task that
                                survives it
    PartOf=, StopWhenUnneeded=  started again with each start of the task, and stopped when it has ended
    RefuseManualStop=           the locks of a running task's disks would be lost
    IgnoreOnIsolate=            the same, of a task whose service has IgnoreOnIsolate=yes
    StartLimitIntervalSec=0     the restarts of the task are limited by its own service
    SuccessExitStatus=SIGTERM   a stop of the task amid its start is no failure: without it, the unit would stay failed,
                                and `systemctl --failed` list it
    the second ExecStopPost=    where the first was killed: nothing else would remove a mount and a user of a task that
                                is not started again. Where no Python program runs, such as without memory, a restart
                                would find the last run's `environment`, and the tender have disks without locks
"""

import asyncio
import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from solo5_systemd.base.atomic_file import replace_file
from solo5_systemd.base.declared_units import DIRECTORY, DROP_IN, FIELDS, STDERR_MAX, TENDER, declaration_directory
from solo5_systemd.base.errors import HostError, InvalidRequestError, Solo5Error, host_errors
from solo5_systemd.base.mounts import mount_memory
from solo5_systemd.base.names import (
    NetworkName,
    TaskName,
    declared_outcome_target,
    task_namespace,
    template_of,
    user_of,
)
from solo5_systemd.dbus import fdstore
from solo5_systemd.declared.declaration import parse_declaration
from solo5_systemd.declared.files import host_names
from solo5_systemd.declared.syntax import Source
from solo5_systemd.declared.unit_file import environment
from solo5_systemd.engine.backends import host_backends
from solo5_systemd.engine.prepare import prepare_start
from solo5_systemd.network import namespaces
from solo5_systemd.pid1.clear import ENVIRONMENT, HELD, NO_CONFIGURATION, drop_held, report, unmount
from solo5_systemd.pid1.kept_declarations import (
    UNCLEARED,
    Kept,
    kept_declaration,
    kept_refusal,
    unseen,
)
from solo5_systemd.settings.files import read_settings
from solo5_systemd.unit.tender import Parts, lasting_path
from solo5_systemd.unit.translate import guest_arguments, log_fields
from solo5_systemd.users.userdb_records import RECORDS, user_record


async def prepare(name: TaskName) -> None:
    """Make all that the unit file of a task refers to; raises Solo5Error where the task cannot start."""
    own = Path(DIRECTORY) / name
    with _written(own):
        (own / ENVIRONMENT).unlink(missing_ok=True)
    if sentence := kept_refusal(name):
        raise InvalidRequestError(sentence)
    kept = kept_declaration(name)
    with _written(own):
        own.mkdir(mode=0o755, exist_ok=True)  # of an instance, whose template has been read
        (own / UNCLEARED).touch()
    settings = read_settings()
    declaration = parse_declaration(name, kept.sources, host=host_names(), served=settings.served)
    _report_image(name, kept.sources, settings.served)
    async with host_backends(lambda: settings) as backends:
        if declaration.workload.idle_stops:  # its service wants the socket in the place of this target
            await backends.units.begin(declared_outcome_target(name))
        await drop_held(name, backends.disks)
        with unseen(kept.sources):
            parts, held = await prepare_start(backends, declaration.workload, partial(report, name))
        try:
            await _check_fits(parts, kept)
            with _written(own), unseen(kept.sources):
                _write(own, parts)
            fdstore.store(HELD, held)
        except BaseException:
            await backends.networks.release(name)
            raise


def _report_image(name: TaskName, sources: Sequence[Source], served: Collection[NetworkName]) -> None:
    """Report an image of the declaration that is not used, since it has changed after an update to another one."""
    declared = [source for source in sources if Path(source.path).name != DROP_IN]
    if len(declared) == len(sources):
        return
    from solo5_systemd.declared.update_files import UpdateFiles  # imported here for startup time: after an update only

    files = UpdateFiles(name)
    with suppress(Solo5Error):  # without the drop-in, there may be no image
        image = parse_declaration(name, declared, host=host_names(), served=served).workload.image
        if files.takes_declared(image):
            which = f"{files.drop_in} has that of the last update"
            report(name, f"the declared image is not used: {which}. To use it: systemctl reload {name}")


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


async def _check_fits(parts: Parts, kept: Kept) -> None:
    """Refuse an image for which the unit file was not made: another tender, or NICs where there were none.

    Where NICs were assumed, an image without them gets the namespace that the unit file names.
    """
    name = parts.workload.name
    nics = bool(parts.image.manifest.nics)
    if kept.fits(parts.tender.path, nics=nics):
        if kept.nics and not nics:
            await asyncio.to_thread(namespaces.make_task_namespace, task_namespace(name))
        return
    now = f"{parts.tender.path} and {'NICs' if nics else 'no NIC'}"
    had = f"{kept.tender} and {'NICs' if kept.nics else 'no NIC'}"
    own = Path(declaration_directory(name)).name
    whose, more = "", ""
    if own == template_of(name):
        whose = f" of {own}"
        more = f". Where instances differ, write /etc/solo5/{name}.unikernel for this one."
    raise HostError(
        f"{parts.workload.image} with {now} is not what the unit file{whose} was made for: expected {had}.",
        f"Run: systemctl daemon-reload{more}",
    )


def _write(own: Path, parts: Parts) -> None:
    name = parts.workload.name
    tender = own / TENDER
    with host_errors(f"{tender} cannot be mounted"):  # a taken-over tender must not fill /run
        tender.mkdir(mode=0o700, exist_ok=True)
        unmount(tender)  # what a killed start has left
        mount_memory(str(tender), STDERR_MAX)
        tender.chmod(NO_CONFIGURATION | 0o110)
    disks = own / "disks"
    disks.mkdir(mode=0o755, exist_ok=True)
    for left in disks.iterdir():  # of the last start, perhaps of an image with other disks
        left.unlink()
    for disk in parts.disks:
        (disks / disk.disk).symlink_to(disk.path)
    with suppress(FileNotFoundError):  # there is none before the first start
        (own / "image").unlink()
    (own / "image").symlink_to(parts.image.path)
    user = user_of(name)
    replace_file(RECORDS / f"{user}.user", user_record(parts.user, name, user), mode=0o644)
    replace_file(own / FIELDS, json.dumps(dict(log_fields(parts))), mode=0o644)
    # Last: the task's service asserts this file.
    replace_file(own / ENVIRONMENT, environment(parts.device_options(lasting_path), guest_arguments(parts)), mode=0o600)
