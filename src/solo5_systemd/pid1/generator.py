"""The generator (systemd.generator(7)): a unit file for each /etc/solo5/NAME.unikernel.

    /run/systemd/system/NAME.service                                   the unit file
    /run/systemd/system/solo5-prepare@NAME.service.d/declared.conf     what its preparation waits for
    /run/systemd/system/solo5-outcome@NAME.target.d/declared.conf      what keeps the ended service loaded
    /run/systemd/system/solo5.slice.d/declared.conf                    if a task survives soft reboots
    /run/solo5/declared/NAME/sources                                   the files as they were read
    /run/solo5/declared/NAME/basis                                     what of image and host is in the unit file
    /run/solo5/declared/NAME/refused                                   why a task that runs cannot be started again
    /run/solo5/declared/NAME/removed                                   that its declaration is gone while it runs

Not in the generator's own directories: systemd refuses to enable a unit that is in one. The sources are kept, since PID
1 keeps a unit as it was at the last daemon-reload too: an edited file takes effect as a whole, and not at a restart.

The unit file of a running task whose declaration was refused or removed since stays: without it, PID 1 would stop the
preparation, which has the locks of its disks.

PID 1 waits for this process, at each daemon-reload and at the boot, before anything is mounted or started.
"""

import asyncio
import fcntl
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from solo5_systemd.declared.declaration import Declaration, declared_task, parse_declaration
from solo5_systemd.declared.files import declarations, host_names, read_sources
from solo5_systemd.declared.syntax import Source
from solo5_systemd.declared.unit_file import (
    MARK,
    SURVIVING,
    Host,
    is_refusal,
    outcome,
    preparation,
    refusal,
    refused_while_running,
    survives_soft_reboot,
    surviving_slice,
    unit_file,
)
from solo5_systemd.declared.update_files import UpdateFiles
from solo5_systemd.errors import HostError, InvalidRequestError, Solo5Error, TakenError
from solo5_systemd.files.atomic_file import replace_file
from solo5_systemd.files.declared_units import DIRECTORY, declared_tasks
from solo5_systemd.host.tenders import TenderPath, groups_for
from solo5_systemd.image.manifest import Device, DeviceKind, Manifest, Target
from solo5_systemd.image.store import read_facts
from solo5_systemd.names import (
    INVOCATION_LINK,
    SERVICE_NIC,
    SLICE,
    UNITS,
    TaskName,
    is_task_name,
    outcome_target,
    prepare_service,
)
from solo5_systemd.settings.files import ETC, read_settings
from solo5_systemd.settings.model import DEFAULT_NETWORK, Settings
from solo5_systemd.unit.tender import Tender

SYSTEM = Path("/run/systemd/system")

OTHERS = ("/etc/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
"""Where a unit file of the same name would be another program's or the operator's own."""

SOURCES, BASIS = "sources", "basis"
REFUSED, REMOVED = "refused", "removed"

_KVM_GROUP = "kvm"
"""Of /dev/kvm in Debian: at the boot, a generator runs before the device node exists."""

_USUAL_ABI_VERSION = 2
"""Of images of Solo5 0.9 or later."""

_SHARED_LIBRARY = re.compile(r"libsystemd-shared-([0-9]+)")


class Generator:
    """Writes unit files.

    Args:
        etc: directory of the declarations.
        system: directory of unit files.
        directory: with the directories of declared tasks.
        others: directories with unit files of others.
        settings: of the host.
        systemd: release of systemd.
        owner: UID that the declarations must have.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        etc: Path = ETC,
        system: Path = SYSTEM,
        directory: str = DIRECTORY,
        others: Sequence[str] = OTHERS,
        systemd: int,
        owner: int = 0,
    ) -> None:
        self._owner = owner
        self._settings = settings
        self._etc = etc
        self._system = system
        self._directory = directory
        self._others = others
        self._systemd = systemd
        self._tenders = cache(self._find_tender)
        self._names = host_names()
        self._surviving = False

    def run(self) -> Iterator[str]:
        """Write the unit files, remove those without a declaration, and yield one sentence for each refusal."""
        found = declarations(self._etc)
        with _locked(Path(self._directory)):
            for name in found:
                if fault := self._generate(name):
                    yield fault
            for task in set(declared_tasks(self._directory)).difference(map(TaskName, found)):
                self._remove(task)
            self._write_slice()

    def _generate(self, name: str) -> str:
        """Write the files of a declaration; return why it was refused, or an empty text."""
        path = f"{self._etc}/{name}.unikernel"
        try:
            task = declared_task(name)
            self._check_free(task)
        except Solo5Error as error:  # there is no unit that could show it
            return f"{path}: {error}"
        try:
            sources = read_sources(name, self._etc, owner=self._owner)
            declaration = self._parsed(name, sources)
            manifest = _manifest(declaration)
            host = self._host(declaration, manifest)
            text = unit_file(declaration, host)
        except Solo5Error as error:
            sentence = str(error) if str(error).startswith(path) else f"{path}: {error}"
            self._refuse(task, path, sentence)
            return sentence
        self._surviving |= survives_soft_reboot(declaration)
        drop_ins = {prepare_service(task): preparation(declaration), outcome_target(task): outcome(declaration)}
        self._write(task, text, drop_ins, {SOURCES: _kept(sources), BASIS: basis(host, manifest)})
        for mark in (REFUSED, REMOVED):
            (Path(self._directory) / task / mark).unlink(missing_ok=True)
        return ""

    def _refuse(self, task: TaskName, path: str, sentence: str) -> None:
        """Write the unit file of a refused declaration; that of a running task keeps what keeps its preparation."""
        if not _is_running(task):
            self._write(task, refusal(path, sentence), {})
            return
        now = (self._system / f"{task}.service").read_text(encoding="utf-8")
        self._surviving |= SURVIVING[0] in now.splitlines()
        text = refusal(path, sentence) if is_refusal(now) else refused_while_running(now, sentence)
        self._write(task, text, {}, {REFUSED: sentence})

    def _write_slice(self) -> None:
        """Write the drop-in of the slice, or remove it: a slice that a soft reboot stops takes all its units along."""
        path = self._system / f"{SLICE}.d" / "declared.conf"
        if self._surviving:
            _replace(path, surviving_slice())
        else:
            shutil.rmtree(path.parent, ignore_errors=True)

    def _parsed(self, name: str, sources: Sequence[Source]) -> Declaration:
        served = [network.name for network in self._settings.networks if network.policy.dhcp]
        return parse_declaration(name, sources, host=self._names, served=served, systemd=self._systemd)

    def _host(self, declaration: Declaration, manifest: Manifest) -> Host:
        workload = declaration.workload
        nics = manifest.names(DeviceKind.NET_BASIC)
        networks = {nic.network for nic in workload.nics} or {DEFAULT_NETWORK}
        found = [self._settings.network(network) for network in networks] if nics else []
        return Host(
            directory=self._directory,
            tender=self._tenders(manifest.target, manifest.abi_version),
            groups=_groups(manifest.target, nics=bool(nics)),
            systemd=self._systemd,
            nics=nics,
            own_namespace=any(network is not None and network.policy.task_namespace for network in found),
            log_namespace=self._settings.log_namespace,
        )

    def _find_tender(self, target: Target, abi_version: int) -> Tender:
        return asyncio.run(TenderPath(self._settings.tender_paths).find(target, abi_version))

    def _check_free(self, task: TaskName) -> None:
        """Refuse a template, and the name of another unit; a mask and an edited copy of ours have precedence."""
        if not is_task_name(task):
            raise InvalidRequestError(
                f"{task}.service would be an instance of a template, which declared tasks cannot be yet: expected a "
                "name without '@'."
            )
        for directory in self._others:
            other = Path(directory) / f"{task}.service"
            if not os.path.lexists(other) or os.path.realpath(other) == "/dev/null":
                continue
            if not _is_ours(other):
                raise TakenError(f"unit {task}.service is {other} already: expected a name that no other unit has.")
        own = self._system / f"{task}.service"
        if os.path.lexists(own) and not _is_ours(own):
            raise TakenError(f"unit {task}.service is {own} already: expected a name that no other unit has.")

    def _write(
        self, task: TaskName, text: str, drop_ins: Mapping[str, str], own: Mapping[str, str] | None = None
    ) -> None:
        directory = Path(self._directory) / task
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        for name, content in (own or {}).items():
            _replace(directory / name, content, mode=0o600)
        for unit, content in drop_ins.items():
            _replace(self._system / f"{unit}.d" / "declared.conf", content)
        _replace(self._system / f"{task}.service", text)

    def _remove(self, task: TaskName) -> None:
        """Remove the files of a declaration that is gone; those of a running task stay."""
        own = self._system / f"{task}.service"
        if _is_running(task) and _is_ours(own):
            self._refuse(task, f"{self._etc}/{task}.unikernel", _gone(task, self._etc))
            _replace(Path(self._directory) / task / REMOVED, "", mode=0o600)
            return
        if not UpdateFiles(task, directory=Path(self._directory)).under_way:
            _remove_files(task, self._system, Path(self._directory))


def basis(host: Host, manifest: Manifest) -> str:
    """Return what of the host and the image a unit file depends on, to be compared at a start."""
    nics = bool(manifest.names(DeviceKind.NET_BASIC))
    return json.dumps({"tender": host.tender.path, "target": f"{manifest.target}", "nics": nics})


def kept_sources(task: TaskName, directory: str = DIRECTORY) -> Sequence[Source]:
    """Return the files of a declaration as they were at the last daemon-reload.

    Raises:
        HostError: they cannot be read.
    """
    path = Path(directory) / task / SOURCES
    try:
        return [
            Source(path=each["path"], content=each["content"].encode("latin-1"))
            for each in json.loads(path.read_bytes())
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HostError(f"{path} cannot be read: {error}.", "Run: systemctl daemon-reload") from error


def _kept(sources: Sequence[Source]) -> str:
    return json.dumps([{"path": each.path, "content": each.content.decode("latin-1")} for each in sources])


def _manifest(declaration: Declaration) -> Manifest:
    """Return the manifest of the image; of one on a file system that is mounted later, what the declaration implies."""
    workload = declaration.workload
    try:
        return read_facts(workload.image).manifest
    except Solo5Error:  # the start will find out
        names = [nic.nic for nic in workload.nics] or [SERVICE_NIC]
        nics = tuple(Device(name=name, kind=DeviceKind.NET_BASIC) for name in names)
        return Manifest(target=workload.tender or Target.HVT, abi_version=_USUAL_ABI_VERSION, devices=nics)


def _groups(target: Target, *, nics: bool) -> Sequence[str]:
    try:
        return groups_for(target, nics=nics)
    except Solo5Error:
        return (_KVM_GROUP,) if target is Target.HVT else ()


def _is_running(task: TaskName) -> bool:
    """Return whether PID 1 has a run of a task or of its preparation."""
    units = (f"{task}.service", prepare_service(task))
    return any(os.path.lexists(f"{UNITS}/{INVOCATION_LINK}{unit}") for unit in units)


def remove_if_gone(task: TaskName, *, system: Path = SYSTEM, directory: Path = Path(DIRECTORY)) -> None:
    """Remove the files of a task that has ended, if its declaration was removed while it ran."""
    with _locked(directory):
        if (directory / task / REMOVED).exists():
            _remove_files(task, system, directory)


def _remove_files(task: TaskName, system: Path, directory: Path) -> None:
    if _is_ours(system / f"{task}.service"):
        (system / f"{task}.service").unlink()
    for unit in (prepare_service(task), outcome_target(task)):
        shutil.rmtree(system / f"{unit}.d", ignore_errors=True)
    shutil.rmtree(directory / task, ignore_errors=True)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Lock the directories of declared tasks: their files may be removed at a task's end and written at once."""
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _gone(task: TaskName, etc: Path) -> str:
    return f"{etc}/{task}.unikernel was removed: expected it for a start. Write it, then run: systemctl daemon-reload"


def kept_refusal(task: TaskName, directory: str = DIRECTORY) -> str:
    """Return why a task that was running at the last daemon-reload cannot be started again; empty: it can."""
    own = Path(directory) / task
    if not own.exists():
        return _gone(task, ETC)
    try:
        return (own / REFUSED).read_text(encoding="utf-8")
    except OSError:
        return ""


def _is_ours(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(MARK)) == MARK.encode()
    except OSError:
        return False


def _replace(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write a file unless it has this content: systemd compares the times of unit files."""
    with suppress(OSError):
        if path.read_text(encoding="utf-8") == text:
            return
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    replace_file(path, text, mode=mode)


def systemd_release() -> int:
    """Return the release of the installed systemd, by its private library: PID 1 cannot be called here."""
    for place in (Path("/usr/lib/systemd"), *Path("/usr/lib").glob("*-linux-gnu/systemd")):
        for file in place.glob("libsystemd-shared-*.so"):
            if match := _SHARED_LIBRARY.match(file.name):
                return int(match[1])
    return 0


def main() -> int:
    """Generate, and write each refusal to stderr, which PID 1 logs."""
    try:
        for sentence in Generator(read_settings(), systemd=systemd_release()).run():
            print(sentence, file=sys.stderr)
    except Solo5Error as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
