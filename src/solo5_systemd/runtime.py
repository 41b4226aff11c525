"""The story of a task: check, reserve, start, watch, stop, forget.

A start is: preflight, of which nothing remains; a reservation, which expires by itself; one StartTransientUnit call.
Whatever fails in between is undone here, and by systemd and the network service where we die half-way.
Nothing is remembered between calls: each begins by asking PID 1.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, replace

from solo5_systemd.backends import Backends, JobFailedError, UnitFiles
from solo5_systemd.block.plan import Disk
from solo5_systemd.cgroup.usage import Usage
from solo5_systemd.errors import InvalidRequestError, NoSuchTaskError, Solo5Error, StartError, TakenError
from solo5_systemd.image.manifest import DeviceKind, Manifest, StoredImage, match
from solo5_systemd.journal.export import Entry, Stream
from solo5_systemd.names import DeviceName, TaskName, network_service, outcome_target, task_service
from solo5_systemd.network.plan import NicRequest, PortRequest, Reservation
from solo5_systemd.task import Phase, Task, phase
from solo5_systemd.unit.outcome import LastWords, Outcome, outcome
from solo5_systemd.unit.properties import TransientUnit
from solo5_systemd.unit.state import ActiveState, UnitState
from solo5_systemd.unit.tender import Tender
from solo5_systemd.unit.translate import Parts, argv, scope, service
from solo5_systemd.workload import STOP_TIMEOUT, StopSignal, UnitKind, Workload

SIGNALS = {StopSignal.INT: 2, StopSignal.TERM: 15}
SIGKILL = 9
LAST_WORDS = 20
"""Lines of the console that are read to tell how a task ended."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a start would do, for `--dry-run`."""

    unit: TransientUnit
    argv: tuple[str, ...]
    reservation: Reservation
    nft: str
    image: StoredImage
    tender: Tender


@dataclass(frozen=True, kw_only=True)
class _Checked:
    """A workload that has passed preflight."""

    workload: Workload
    image: StoredImage
    tender: Tender
    groups: Sequence[str]
    disks: Sequence[Disk]
    nics: Sequence[NicRequest]
    ports: Sequence[PortRequest]

    def parts(self, reservation: Reservation) -> Parts:
        return Parts(
            workload=self.workload,
            image=self.image,
            tender=self.tender,
            reservation=reservation,
            disks=self.disks,
            groups=self.groups,
        )


class Runtime:
    """The engine, on the backends that it is given."""

    def __init__(self, backends: Backends) -> None:
        self._images = backends.images
        self._tenders = backends.tenders
        self._disks = backends.disks
        self._networks = backends.networks
        self._units = backends.units
        self._console = backends.console
        self._usages = backends.usages

    # --- start -----------------------------------------------------------------------------------------------

    async def preview(self, workload: Workload) -> Plan:
        """What `start` would do; nothing is reserved or started.

        Raises:
            Solo5Error: as `start`.
        """
        checked = await self._check(workload)
        nft = ""
        reservation = Reservation(task=workload.name)
        if checked.nics:
            seen = await self._networks.preview(workload.name, checked.nics, checked.ports)
            reservation, nft = seen.reservation, seen.nft
        parts = checked.parts(reservation)
        unit = service(parts) if workload.kind is UnitKind.SERVICE else scope(parts, pid=0)
        return Plan(
            unit=unit,
            argv=argv(parts),
            reservation=reservation,
            nft=nft,
            image=checked.image,
            tender=checked.tender,
        )

    async def start(self, workload: Workload) -> Task:
        """Start a task as a service of PID 1.

        Raises:
            Solo5Error: it did not start; nothing that was made for it is left.
        """
        checked = await self._check(workload)
        unit = task_service(workload.name)
        async with AsyncExitStack() as undo:
            parts = checked.parts(await self._reserve(checked, undo))
            transient = service(parts)
            files = await self._files(checked, unit, undo)
            await self._launch(workload.name, transient, files)
            undo.pop_all()
            _close(files)
        return await self.task(workload.name)

    async def start_scope(self, workload: Workload, pid: int) -> tuple[str, ...]:
        """Put a process into a scope of its own and say what it is to execute: the tender's command line.

        Raises:
            Solo5Error: the scope did not start; nothing that was made for it is left.
        """
        checked = await self._check(workload)
        async with AsyncExitStack() as undo:
            parts = checked.parts(await self._reserve(checked, undo))
            line = argv(parts)
            await self._launch(workload.name, scope(parts, pid), UnitFiles())
            undo.pop_all()
        return line

    async def _check(self, workload: Workload) -> _Checked:
        """Preflight: everything that can be known to fail is found here, before anything is created."""
        if await self._units.state(workload.name) is not None:
            raise TakenError(
                f"task name {workload.name!r} is taken: expected a name that no task has.",
                f"Remove that task first: solo5ctl rm {workload.name}",
            )
        image = await self._images.take(workload.image)
        manifest = image.facts.manifest
        nics = workload.nics or _default_nics(manifest)
        match(manifest, [nic.nic for nic in nics], [disk.disk for disk in workload.disks])
        if workload.tender not in (None, manifest.target):
            raise InvalidRequestError(
                f"tender {workload.tender} was asked for, and {workload.image} is built for {manifest.target}."
            )
        ports = _ports(workload, nics)
        tender = await self._tenders.find(manifest.target, manifest.abi_version)
        groups = await self._tenders.groups(manifest.target, nics=bool(nics))
        disks = [await self._disks.inspect(request) for request in workload.disks]
        checked = _Checked(
            workload=workload, image=image, tender=tender, groups=groups, disks=disks, nics=nics, ports=ports
        )
        # Memory and properties do not depend on the reservation: say so before one is made.
        parts = checked.parts(Reservation(task=workload.name))
        _ = parts.memory_mib
        service(replace(parts, workload=replace(workload, arguments=())))
        return checked

    async def _reserve(self, checked: _Checked, undo: AsyncExitStack) -> Reservation:
        name = checked.workload.name
        if not checked.nics:
            return Reservation(task=name)
        undo.push_async_callback(self._networks.release, name)
        return await self._networks.reserve(name, checked.nics, checked.ports)

    async def _files(self, checked: _Checked, unit: str, undo: AsyncExitStack) -> UnitFiles:
        """The unit's stdin carries the disks' locks, since a tender never reads it; stderr is a stream of its own."""
        stdin = await self._disks.lock(checked.disks) if checked.disks else None
        if stdin is not None:
            undo.callback(os.close, stdin)
        stderr = await self._console.open_stderr(unit)
        undo.callback(os.close, stderr)
        return UnitFiles(stdin=stdin, stderr=stderr)

    async def _launch(self, name: TaskName, unit: TransientUnit, files: UnitFiles) -> None:
        try:
            await self._units.start(unit, files)
        except JobFailedError as error:
            why = await self._why(name, error)
            await self._discard(name, unit.name)
            raise why from error
        except (Solo5Error, asyncio.CancelledError) as error:
            if not isinstance(error, TakenError):
                await asyncio.shield(self._discard(name, unit.name))
            raise

    async def _why(self, name: TaskName, error: JobFailedError) -> StartError:
        """Which part of a start failed, in that part's own words."""
        part, unit = ("tender", error.unit)
        if error.result == "dependency":
            part, unit = ("network", network_service(name))
        said = await self._console.complaints(unit)
        quoted = said[-1] if said else f"systemd says only {error.result!r}"
        return StartError(f"task {name} did not start: its {part} failed: {quoted}", f"See: journalctl -u {unit}")

    async def _discard(self, name: TaskName, unit: str) -> None:
        """Leave nothing of a task: neither its unit, nor how it ended, nor its share of the network."""
        for each in (unit, outcome_target(name)):
            await self._units.stop(each)
        await self._units.forget([unit, network_service(name)])
        await self._networks.release(name)

    # --- look ------------------------------------------------------------------------------------------------

    async def task(self, name: TaskName) -> Task:
        """One task, now.

        Raises:
            NoSuchTaskError: none has this name.
        """
        return await self._view(await self._state(name), await self._networks.reservations())

    async def tasks(self) -> tuple[Task, ...]:
        """All tasks, ended ones too, by name."""
        states = await self._units.states()
        reservations = await self._networks.reservations() if states else ()
        views = await asyncio.gather(*(self._view(state, reservations) for state in states))
        return tuple(sorted(views, key=lambda task: task.name))

    async def _state(self, name: TaskName) -> UnitState:
        state = await self._units.state(name)
        if state is None:
            raise NoSuchTaskError(f"no task is named {name!r}.", "List them: solo5ctl ps --all")
        return state

    async def _view(self, state: UnitState, reservations: Sequence[Reservation]) -> Task:
        stalled = bool(state.main_pid) and not state.over and await self._usages.stalled(state.main_pid)
        return Task(
            state=state,
            phase=phase(state, stalled=stalled),
            outcome=await self._outcome(state) if state.over else None,
            reservation=next((r for r in reservations if r.task == state.task), None),
        )

    async def _outcome(self, state: UnitState) -> Outcome:
        """The console is read only where an exit status alone is ambiguous."""
        if state.main_status not in (1, 255):
            return outcome(state)
        await self._console.sync()
        said: dict[Stream, list[str]] = {Stream.STDOUT: [], Stream.STDERR: []}
        async for entry in self._console.entries(state, follow=False, last=LAST_WORDS):
            said[entry.stream].append(entry.message.decode("utf-8", "replace"))
        return outcome(state, LastWords(guest=said[Stream.STDOUT], tender=said[Stream.STDERR]))

    async def usage(self, name: TaskName) -> Usage | None:
        """What the task uses now; None where its cgroup is gone."""
        state = await self._state(name)
        return await self._usages.usage(state.control_group) if state.control_group else None

    async def console(self, task: Task, *, follow: bool, last: int | None = None) -> AsyncGenerator[Entry, None]:
        """The console's lines; following ends by itself when the task has ended and all was read."""
        cursor = None
        if follow:
            async with aclosing(self._follow(task, last)) as entries:
                async for entry in entries:
                    cursor = entry.cursor
                    yield entry
            await self._console.sync()
            last = last if cursor is None else None
        async for entry in self._console.entries(task.state, follow=False, last=last, after=cursor):
            yield entry

    async def _follow(self, task: Task, last: int | None) -> AsyncGenerator[Entry, None]:
        """Lines until the task ends; what it said just before its end may still be on the way."""
        async with aclosing(self._console.entries(task.state, follow=True, last=last)) as entries:
            ended = asyncio.ensure_future(self._ended(task.state))
            reading = asyncio.ensure_future(anext(entries))
            try:
                while True:
                    await asyncio.wait((ended, reading), return_when=asyncio.FIRST_COMPLETED)
                    if not reading.done():
                        return
                    yield reading.result()
                    reading = asyncio.ensure_future(anext(entries))
            except StopAsyncIteration:
                return
            finally:
                for future in (ended, reading):
                    future.cancel()
                await asyncio.gather(ended, reading, return_exceptions=True)

    async def wait(self, name: TaskName) -> Task:
        """Wait until the task has ended, and say how.

        Raises:
            NoSuchTaskError: none has this name, or it was removed meanwhile.
        """
        state = await self._ended(await self._state(name))
        if state is None:
            raise NoSuchTaskError(f"task {name} was removed before its end could be read.")
        return await self._view(state, ())

    async def _ended(self, state: UnitState) -> UnitState | None:
        async with aclosing(self._units.changes(state)) as states:
            async for now in states:
                if now.over or now.invocation != state.invocation:
                    return now
                if now.main_pid and await self._usages.stalled(now.main_pid):
                    await self._units.kill(now.unit, SIGKILL, everyone=True)
        return None

    # --- act -------------------------------------------------------------------------------------------------

    async def stop(
        self, name: TaskName, *, signal: StopSignal = StopSignal.TERM, patience: float = STOP_TIMEOUT
    ) -> Task:
        """Send the stop signal, wait at most `patience` seconds, then kill the whole cgroup.

        Raises:
            NoSuchTaskError: none has this name.
        """
        state = await self._state(name)
        if state.over:
            return await self.task(name)
        if state.frozen:
            await self._units.thaw(state.unit)
        stalled = bool(state.main_pid) and await self._usages.stalled(state.main_pid)
        if stalled:
            await self._units.kill(state.unit, SIGKILL, everyone=True)
        elif signal is not StopSignal.TERM:
            await self._units.kill(state.unit, SIGNALS[signal], everyone=False)
        stopping = asyncio.ensure_future(self._bring_down(state, now=signal is StopSignal.TERM))
        try:
            async with asyncio.timeout(patience):
                await asyncio.shield(stopping)
        except TimeoutError:
            await self._units.kill(state.unit, SIGKILL, everyone=True)
            await stopping
        return await self._settled(state)

    async def _bring_down(self, state: UnitState, *, now: bool) -> None:
        if now:
            await self._units.stop(state.unit)
        else:
            await self._ended(state)

    async def _settled(self, state: UnitState) -> Task:
        """The ended task. A stop that was asked for is no failure, though hvt exits with 1 for it."""
        after = await self._units.state(state.task)
        if after is None:  # a scope: nothing keeps it
            after = replace(state, active=ActiveState.INACTIVE)
        task = await self._view(after, ())
        if task.outcome is not None and task.outcome.clean and after.active is ActiveState.FAILED:
            await self._units.forget([after.unit])
        return task

    async def kill(self, name: TaskName, number: int) -> None:
        """Send INT or TERM to the tender, or KILL to the whole cgroup.

        Raises:
            InvalidRequestError: any other signal.
            NoSuchTaskError: none has this name.
        """
        if number not in (*SIGNALS.values(), SIGKILL):
            raise InvalidRequestError(
                f"signal {number} cannot be sent: a tender knows INT and TERM, and KILL ends it; any other "
                "either kills it without a word or does nothing.",
                "To stop and continue a guest: solo5ctl freeze, solo5ctl thaw",
            )
        state = await self._state(name)
        if state.over:
            raise InvalidRequestError(f"task {name} has ended: there is nothing to send a signal to.")
        await self._units.kill(state.unit, number, everyone=number == SIGKILL)

    async def freeze(self, name: TaskName) -> None:
        await self._units.freeze((await self._running(name)).unit)

    async def thaw(self, name: TaskName) -> None:
        await self._units.thaw((await self._running(name)).unit)

    async def _running(self, name: TaskName) -> UnitState:
        state = await self._state(name)
        if state.over:
            raise InvalidRequestError(f"task {name} has ended: it can be neither frozen nor thawed.")
        return state

    async def remove(self, name: TaskName, *, force: bool = False) -> None:
        """Forget an ended task, and with `force` stop a running one first.

        Raises:
            NoSuchTaskError: none has this name.
            TakenError: it runs, and `force` was not given.
        """
        state = await self._state(name)
        if not state.over:
            if not force:
                raise TakenError(
                    f"task {name} is running: expected one that has ended.",
                    f"Stop it first (solo5ctl stop {name}), or remove it by force (solo5ctl rm --force {name}).",
                )
            await self.stop(name)
        await self._discard(name, state.unit)

    async def collect(self, *, dry_run: bool) -> tuple[str, ...]:
        """Remove what belongs to nobody: network leftovers, and stored images that no task runs. A line for each."""
        tasks = await self._units.states()
        keep = frozenset(state.log_fields.get("SOLO5_IMAGE_SHA256", "") for state in tasks)
        removed = await self._networks.collect(dry_run=dry_run)
        images = await self._images.collect(keep, dry_run=dry_run)
        return (*removed, *(f"image {sha256}" for sha256 in images))


def _default_nics(manifest: Manifest) -> tuple[NicRequest, ...]:
    return tuple(NicRequest(nic=name) for name in manifest.names(DeviceKind.NET_BASIC))


def _ports(workload: Workload, nics: Sequence[NicRequest]) -> tuple[PortRequest, ...]:
    """Each published port with its NIC: named, or the only one, or the one that MirageOS calls `service`."""
    names = [nic.nic for nic in nics]
    implied = names[0] if len(names) == 1 else DeviceName("service")
    for publish in workload.publish:
        if (publish.nic or implied) not in names:
            has = ", ".join(names) or "none"
            raise InvalidRequestError(
                f"port {publish.host_port} is published to NIC {publish.nic or '(not named)'}: "
                f"expected one of the image's NICs ({has}).",
                "Write it as NIC:HOSTPORT:PORT." if names else "",
            )
    return tuple(publish.to(publish.nic or implied) for publish in workload.publish)


def _close(files: UnitFiles) -> None:
    for fd in (files.stdin, files.stderr):
        if fd is not None:
            os.close(fd)


__all__ = ["Phase", "Plan", "Runtime", "Task"]
