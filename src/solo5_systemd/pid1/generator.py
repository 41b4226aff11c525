"""The generator (systemd.generator(7)): a unit file for each /etc/solo5/NAME.unikernel.

    /run/systemd/system/NAME.service                                   the unit file
    /run/systemd/system/solo5-prepare@NAME.service.d/declared.conf     what its preparation waits for
    /run/systemd/system/solo5.slice.d/declared.conf                    if a task survives soft reboots
    /run/systemd/system/solo5-awaited-NAME@.target                     of a template, in the place of the drop-in
    /run/solo5/declared/NAME/sources                                   the files as they were read, and what of image
                                                                       and host is in the unit file
    /run/solo5/declared/NAME/refused                                   why a task that runs cannot be started again
    /run/solo5/declared/NAME/removed                                   that its declaration is gone while it runs

Why there, and why sources and unit files of running tasks are kept: docs/decisions/declared-tasks.md.

PID 1 waits for this process, at each daemon-reload and at the boot, before anything is mounted or started. So whatever
may hang has `BUDGET_S` in all. An image that was not read in time is assumed to be on a file system mounted later.
"""

import asyncio
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from glob import glob
from pathlib import Path
from types import MappingProxyType

from solo5_systemd.base import declared_units
from solo5_systemd.base.atomic_file import replace_file
from solo5_systemd.base.concurrency import Budget, in_processes
from solo5_systemd.base.declared_units import REFUSED, SOURCES, UPDATE, is_ours
from solo5_systemd.base.errors import HostError, InvalidRequestError, NotFoundError, SettingsError, Solo5Error
from solo5_systemd.base.names import (
    SERVICE_NIC,
    SLICE,
    Target,
    TaskName,
    awaited_target,
    is_instance,
    prepare_service,
    template_of,
)
from solo5_systemd.declared.declaration import Declaration, parse_declaration
from solo5_systemd.declared.files import check_name, declarations, host_names, own_instances, read_sources
from solo5_systemd.declared.other_units import check_free, of_generators, unit_files
from solo5_systemd.declared.syntax import Source
from solo5_systemd.declared.template import image_pattern, is_template, parse_template
from solo5_systemd.declared.unit_file import (
    SURVIVING,
    SURVIVING_SLICE,
    awaited,
    is_refusal,
    parts_of,
    refusal,
    refused_while_running,
    socket,
    survives_soft_reboot,
    unit_file,
)
from solo5_systemd.host.drop_ins import UNITS
from solo5_systemd.host.tenders import TenderPath, groups_for
from solo5_systemd.image.manifest import Manifest
from solo5_systemd.image.store import manifest_of
from solo5_systemd.pid1 import kept_declarations
from solo5_systemd.pid1.kept_declarations import (
    REMOVED,
    UNCLEARED,
    Kept,
    end_waiting,
    is_active,
    locked,
    remove_files,
    removed_sentence,
)
from solo5_systemd.settings.files import ETC, read_settings
from solo5_systemd.settings.solo5_toml import Settings
from solo5_systemd.unit.tender import Tender

BUDGET_S = 1.0
"""Seconds for which the lock, images and tenders are waited for, in all; a quick one is not counted."""

PROCESS_MIN = 100
"""Declarations for which another process is started: they take 100 ms, its start 5 ms."""

_IMAGES_MAX = 100
"""Images of instances that are looked at for one that can be read."""

_KVM_GROUP = "kvm"
"""Of /dev/kvm in Debian: at the boot, a generator runs before the device node exists."""


class Generator:
    """Writes unit files; an error in the place of the settings refuses each declaration."""

    def __init__(self, settings: Settings | SettingsError) -> None:
        self._budget = Budget(BUDGET_S)
        self._given = settings
        self._system = kept_declarations.SYSTEM
        self._directory = Path(declared_units.DIRECTORY)
        self._units = unit_files(UNITS)
        self._generated = of_generators()
        self._systemd = systemd_release()
        self._tenders = cache(self._find_tender)
        self._manifests = cache(lambda pattern: self._budget.within(lambda: _manifest(pattern), None))
        self._names = host_names()
        self._surviving = False

    def run(self) -> Iterator[str]:
        """Write the unit files, remove those without a declaration, and yield one sentence for each refusal."""
        found = set(declarations(ETC))
        for template in list(filter(is_template, found)):
            found.update(own_instances(template, ETC))
        try:
            lock = locked(self._budget.left_s)
        except HostError as error:
            yield from self._without_lock(sorted(found), f"{error}")
            return
        with lock:
            for faults, surviving, left_s in in_processes(self._generate_all, sorted(found), PROCESS_MIN):
                yield from faults
                self._surviving |= surviving
                self._budget.left_s = min(self._budget.left_s, left_s)
            known = os.listdir(self._directory)  # noqa: PTH208 - for strings
            for name in sorted(set(known) - found):
                self._remove(name, is_declared=template_of(TaskName(name)) in found)
            path = self._system / f"{SLICE}.d" / "declared.conf"
            if self._surviving:
                _replace(path, SURVIVING_SLICE)
            else:  # a slice that a soft reboot stops takes all its units along
                shutil.rmtree(path.parent, ignore_errors=True)
        if self._budget.left_s <= 0:
            yield "Images and tenders took too long: units of declared tasks may lack what they would have shown."

    def _without_lock(self, names: Sequence[str], reason: str) -> Iterator[str]:
        """Leave the unit files as they are, and write a refusal for each declaration that has none."""
        yield f"{reason} The declared tasks stay as they were at the last daemon-reload: run it again."
        for name in names:
            with suppress(Solo5Error):
                check_name(name)
                check_free(name, self._generated, self._units)
                path, unit = f"{ETC}/{name}.unikernel", self._system / f"{name}.service"
                if not os.path.lexists(unit):
                    _replace(unit, refusal(path, f"{path} was not read, since {reason}"))

    @property
    def _settings(self) -> Settings:
        if isinstance(self._given, SettingsError):
            raise self._given
        return self._given

    def _generate_all(self, names: Sequence[str]) -> tuple[Sequence[str], bool, float]:
        """Write the files of declarations; return why some were refused, and what this has changed of the generator."""
        return [*filter(None, map(self._generate, names))], self._surviving, self._budget.left_s

    def _generate(self, name: str) -> str:
        """Write the files of a declaration; return why it was refused, or an empty text."""
        path = f"{ETC}/{name}.unikernel"
        try:
            check_name(name)
            check_free(name, self._generated, self._units)
        except Solo5Error as error:  # there is no unit that could show it; ours would hide the other one of its name
            if is_ours(self._system / f"{name}.service"):
                if is_active(f"{name}.service", prepare_service(TaskName(name))):
                    self._refuse(name, f"{path}: {error}")
                else:
                    remove_files(name)
            return f"{path}: {error}"
        try:
            files = self._files(name, read_sources(name, ETC))
        except Solo5Error as error:
            sentence = str(error) if str(error).startswith(path) else f"{path}: {error}"
            # Without its socket unit, PID 1 would close the FIFO of a task that waits, for good.
            waits = self._system / f"{name}.socket"
            self._refuse(name, sentence, {waits: waits.read_text(encoding="utf-8")} if is_ours(waits) else {})
            return sentence
        self._write(name, files)
        for mark in (REFUSED, REMOVED):
            (self._directory / name / mark).unlink(missing_ok=True)
        return ""

    def _refuse(self, name: str, sentence: str, others: Mapping[Path, str] = MappingProxyType({})) -> None:
        """Write the unit file of a refused declaration; that of a running task keeps what keeps its preparation."""
        service, files = self._system / f"{name}.service", dict(others)
        text = refusal(f"{ETC}/{name}.unikernel", sentence)
        own = service  # in use: an instance may have been started from the unit file of its template
        if "@" in name and not os.path.lexists(service):
            own = self._system / f"{template_of(TaskName(name))}.service"
        if is_active(f"{name}.service", prepare_service(TaskName(name))) and is_ours(own):
            now = own.read_text(encoding="utf-8")
            self._surviving |= SURVIVING[0] in now.splitlines()
            text = text if is_refusal(now) else refused_while_running(now, sentence)
            files[self._directory / name / REFUSED] = sentence
        self._write(name, {**files, service: text})

    def _files(self, name: str, sources: Sequence[Source]) -> Mapping[Path, str]:
        parse = parse_template if is_template(name) else parse_declaration
        declaration = parse(name, sources, host=self._names, served=self._settings.served, systemd=self._systemd)
        task, text = declaration.workload.name, declaration.text
        surviving = survives_soft_reboot(declaration)
        if surviving and is_instance(task):  # its preparation would not: it has no drop-in
            raise InvalidRequestError(
                "SurviveFinalKillSignal=yes is not for a template or an instance: expected it in a file without '@'."
            )
        self._surviving |= surviving
        read = self._manifests(image_pattern(declaration))
        manifest = read or _assumed(declaration)
        parts = parts_of(
            declaration,
            tender=self._tenders(manifest.target),
            manifest=manifest,
            groups=_groups(manifest),
            systemd=self._systemd,
            log_namespace=self._settings.log_namespace,
        )
        nics = bool(manifest.nics)
        kept = Kept(sources=sources, tender=parts.tender.path, nics=nics, nics_assumed=read is None)
        files = {self._directory / name / SOURCES: kept.text()}
        drop_in = f"{prepare_service(task)}.d/declared.conf"
        before = awaited_target(TaskName(name)) if is_instance(task) else drop_in
        files[self._system / before] = text(awaited(declaration, parts))
        if declaration.workload.idle_stops:
            files[self._system / f"{name}.socket"] = socket(declaration)
        return {**files, self._system / f"{name}.service": text(unit_file(declaration, parts))}

    def _find_tender(self, target: Target) -> Tender:
        """Return the tender, or where it is expected: its file system may be one that is mounted later."""
        path = TenderPath(self._settings.tender_paths)
        reason = f"no tender in {', '.join(self._settings.tender_paths)} has printed its version in time."
        found = None
        try:
            found = self._budget.within(lambda: asyncio.run(path.find(target)), None)
        except NotFoundError as error:
            reason = str(error)
        return found or path.expected(target, reason)

    def _write(self, name: str, files: Mapping[Path, str]) -> None:
        """Write the files of a declaration, its unit file last."""
        (self._directory / name).mkdir(mode=0o755, parents=True, exist_ok=True)
        waits = self._system / f"{name}.socket"
        if waits not in files and is_ours(waits):  # it had IdleAction=stop at the last daemon-reload
            waits.unlink()
            end_waiting(name)
        for path, content in files.items():
            # What is kept may be of files that not every user may read.
            _replace(path, content, mode=0o600 if path.parent == self._directory / name else 0o644)

    def _remove(self, name: str, *, is_declared: bool) -> None:
        """Remove the files of a declaration that is gone; those of a running task stay."""
        own = self._system / f"{name}.service"
        if is_declared:  # an instance, by its template from now on, or before already
            if is_ours(own):
                own.unlink()
            (self._system / awaited_target(TaskName(name))).unlink(missing_ok=True)
            for file in (SOURCES, REFUSED, REMOVED):
                (self._directory / name / file).unlink(missing_ok=True)
            return
        task = TaskName(name)
        # A preparation that has cleared up would not see the mark any more.
        tasks = f"{name}?*" if is_template(name) else name
        prepared = any(self._directory.glob(f"{tasks}/{UNCLEARED}"))
        if is_active(f"{name}.service", *([prepare_service(task)] if prepared else [])):
            if is_ours(own):  # else an instance that has the unit file of its template
                self._refuse(name, removed_sentence(task))
                _replace(self._directory / name / REMOVED, "", mode=0o600)
            return
        if is_template(name) or not (self._directory / name / UPDATE).exists():  # the end of an update needs the files
            remove_files(name)


def _manifest(pattern: str) -> Manifest | None:
    """Return the manifest of the first image that can be read; None: all may be on a file system mounted later."""
    for image in sorted(glob(pattern, include_hidden=True))[:_IMAGES_MAX]:  # noqa: PTH207 - a quarter of its time
        with suppress(Solo5Error):  # the start will find out
            return manifest_of(image)
    return None


def _assumed(declaration: Declaration) -> Manifest:
    """Return the manifest that a declaration implies."""
    workload = declaration.workload
    nics = tuple(nic.nic for nic in workload.nics) or (SERVICE_NIC,)
    return Manifest(target=workload.tender or Target.HVT, nics=nics, disks=())


def _groups(manifest: Manifest) -> Sequence[str]:
    try:
        return groups_for(manifest.target, nics=bool(manifest.nics))
    except Solo5Error:
        return (_KVM_GROUP,) if manifest.target is Target.HVT else ()


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
            if match := re.match("libsystemd-shared-([0-9]+)", file.name):
                return int(match[1])
    return 0


def main() -> int:
    """Generate, and write each refusal to stderr, which PID 1 logs."""
    settings: Settings | SettingsError
    try:
        settings = read_settings()
    except SettingsError as error:  # an operator looks at the units: they show it
        settings = error
    for sentence in Generator(settings).run():
        print(sentence, file=sys.stderr)
    return 0
