"""Update a declared task without a lost connection: its new guest runs beside the old one before it takes its place.

    1. a task `NAME.next`, of NAME@1 `NAME.next.1`, is started with the new image and an address of its own
    2. when it is ready, the published ports are moved to it; connections stay with the old guest
    3. it is watched while connections of the old guest end
    4. the task itself is started again with the new image, at the address that it always has
    5. when that is ready, the ports are moved back; `NAME.next` is removed once its connections have ended

Until step 4 nothing of the task is changed: a failure moves the ports back to the old guest. See
docs/decisions/updates.md.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Protocol as Interface

from solo5_systemd.base.concurrency import background
from solo5_systemd.base.errors import HostError, InvalidRequestError, NotFoundError, Solo5Error, StartError
from solo5_systemd.base.names import TaskName, host_name
from solo5_systemd.bus.peers import JobCanceledError
from solo5_systemd.dbus.fdstore import notify
from solo5_systemd.declared.update_files import Phase, UpdateFiles
from solo5_systemd.declared.update_request import (
    READY_TIMEOUT_S,
    Ready,
    ReadyLine,
    UpdateRequest,
    check_beside,
    check_same_devices,
    next_task,
    ready_by,
)
from solo5_systemd.engine.facts import store_image
from solo5_systemd.engine.plan import Plan
from solo5_systemd.engine.readiness import check_pattern, end_of, until_ready
from solo5_systemd.engine.restart import Restarter, StoppedError
from solo5_systemd.engine.runtime import Runtime
from solo5_systemd.engine.task import QUIET, Task
from solo5_systemd.image.manifest import Manifest
from solo5_systemd.network.model import PortRequest
from solo5_systemd.task.workload import Workload

SERVING = "READY=1"
"""Has systemd report the start of the update's unit as done: the new guest has the ports."""

GUESTS_INTERVAL_S = 0.5
"""Seconds between two looks at the old guest and its connections."""

RELOAD_MARGIN_S = 2.0
"""Seconds before PID 1 ends a reload in which an update has to be ready or undone, so that both have one result."""


class Images(Interface):
    """Which image the task is started with; each takes effect before it returns."""

    async def switch(self) -> None:
        """Have the next start use the new image; the one that runs is kept. If it raises, nothing has changed."""

    async def revert(self) -> None:
        """Have the next start use the image that ran before `switch`."""


class Updater:
    """Updates one declared task."""

    def __init__(
        self, runtime: Runtime, name: TaskName, service: str, images: Images, files: UpdateFiles, *, publishes: bool
    ) -> None:
        self._runtime = runtime
        self._networks = runtime.backends.networks
        self._units = runtime.backends.units
        self._starter = runtime.starter
        self._task = Restarter(runtime, name, service)
        self._name = name
        self._next = next_task(name)
        self._service = service
        self._images = images
        self._files = files
        self._publishes = publishes

    async def ensure_runs(self) -> None:
        """Start a dormant task; raises InvalidRequestError for another that does not run."""
        if await self._task.is_dormant():
            await self._units.ensure_started(self._service)
            self._files.step(f"task {self._name}, which was dormant, is started")
        await self._task.present()

    async def update(self, declared: Workload, request: UpdateRequest, usual: Ready | None, old: Manifest) -> None:
        """Update the task; if that fails, it is as before.

        Args:
            usual: what makes the guest of the declaration ready, for a return to the earlier image.

        Raises:
            Solo5Error: the update was not possible, or was undone.
        """
        first = await self._task.present()
        workload = replace(declared, image=request.image or declared.image)
        ports = first.reservation.ports if first.reservation else ()
        if not ports and await self.ports():
            raise InvalidRequestError(
                f"task {self._next} has the published ports of task {self._name}: expected no other task with them.",
                f"To move them back: {self._return_of_ports}",
            )
        request, usual = replace(request, ready=ready_by(request.ready, ports)), ready_by(usual, ports)
        self._task.dependents = tuple(await self._units.dependents(self._service))
        if others := sorted({*self._task.dependents} - {f"{self._name}.socket"}):
            self._files.step(f"units that are restarted with {self._service}: {', '.join(others)}")
        if isinstance(request.ready, ReadyLine):
            await check_pattern(request.ready.pattern)
        if request.pause:
            # The rest of preflight needs what the old guest has.
            image = await store_image(self._runtime.backends, workload)
            check_same_devices(workload.image, image.manifest, old)
            await self._switch(request, usual)
        else:
            check_beside(workload, ports)
            until = await self._reload_end()
            async with self._in_time(until):
                planned = await self._plan_beside(workload, ports, old)
            second = await self._serve_beside(request, planned, first, until)
            third = await self._switch(request, usual)
            self._files.phase = Phase.DRAINING
            await self._take_ports_back()
            self._files.step(f"task {self._name} runs the new image and has its ports again")
            await self._drain(third, second, request.drain)
            await self._remove_next()
        self._files.settle()

    async def _plan_beside(self, workload: Workload, ports: Sequence[PortRequest], old: Manifest) -> Plan:
        """Return the plan of the guest beside the task, whose ports it has later."""
        beside = replace(
            workload,
            name=self._next,
            nics=tuple(  # without addresses and routes of its own
                replace(nic, ipv4=None, mac=None, ipv6=None, limits=replace(nic.limits, routes=()))
                for nic in workload.nics
            ),
            hostname=workload.hostname or host_name(self._name),
            idle_s=0,
            idle_stops=False,  # the declaration has no socket unit for it
        )
        planned = await self._starter.plan(beside)
        check_same_devices(beside.image, planned.image.manifest, old)
        if planned.request.ports != tuple(ports):
            raise InvalidRequestError(
                f"the published ports of {self._name} have changed since it was started: "
                "expected the same ones for an update.",
                f"To publish the new ones: systemctl restart {self._name}",
            )
        return replace(planned, lent=ports)

    async def _serve_beside(self, request: UpdateRequest, planned: Plan, first: Task, until: float | None) -> Task:
        """Take the steps before that of the task itself, and return the guest that has the ports."""
        self._files.phase = Phase.BESIDE
        try:
            async with self._in_time(until):
                second = await self._starter.service(planned, QUIET)
                evidence = await until_ready(self._runtime, second, request.ready, request.timeout)
                await self._networks.move_ports(self._name, self._next)
            self._files.step(f"the new guest, task {self._next}, has the published ports: {evidence}")
            notify(SERVING)
            await self._watch(first, second, request)
        except Solo5Error:
            await self._end(request)
            raise
        return second

    async def _watch(self, first: Task, second: Task, request: UpdateRequest) -> None:
        """Watch the new guest, which may end, and wait for the end of the old one's connections."""
        loop = asyncio.get_running_loop()
        begun, watch, drain = loop.time(), request.watch, request.drain
        async with background(end_of(self._runtime, second)) as ended:
            while True:
                left = watch - (loop.time() - begun)
                await asyncio.wait(
                    (ended,), timeout=min(GUESTS_INTERVAL_S, left) if left > 0 else GUESTS_INTERVAL_S / 5
                )
                if ended.done():
                    raise StartError(f"the new guest ended within its watch: {ended.result()}.")
                if await self._task.is_over(first):
                    raise self._task.stopped()
                elapsed = loop.time() - begun
                if elapsed >= watch and (elapsed >= drain or not await self._connections(first)):
                    return

    async def _switch(self, request: UpdateRequest, usual: Ready | None) -> Task:
        """Start the task with the new image, or else with its earlier one; a guest beside it serves meanwhile."""
        loop = asyncio.get_running_loop()
        self._files.phase = Phase.SWITCHING
        try:
            await self._images.switch()
        except Solo5Error:
            await self._end(request)
            raise
        begun = loop.time()
        try:
            run, evidence = await self._task.start(request.ready, request.timeout)
            if request.pause:
                pause = loop.time() - begun
                self._files.step(f"task {self._name} runs the new image: {evidence}, after a pause of {pause:.2f} s")
                notify(SERVING)
                await self._watch_alone(run, request.watch)
        except Solo5Error as error:
            if isinstance(error, StoppedError):
                await self._images.revert()
            else:
                await self._return_to_earlier(request, usual, error)
            await self._end(request)
            raise
        await asyncio.to_thread(self._files.remember)
        return run

    async def _watch_alone(self, run: Task, watch: float) -> None:
        """Watch the new guest of an update with a pause; raises StartError if it ends, StoppedError if stopped."""
        with suppress(TimeoutError):
            async with asyncio.timeout(watch):
                end = await end_of(self._runtime, run)
                if await self._task.is_stopped():
                    raise self._task.stopped()
                raise StartError(f"the new guest ended within its watch: {end}.")

    async def _return_to_earlier(self, request: UpdateRequest, usual: Ready | None, error: Solo5Error) -> None:
        """Start the task with its earlier image, after an error with the new one."""
        try:
            await self._images.revert()
            await self._task.start(usual, max(request.timeout, READY_TIMEOUT_S))
        except StoppedError:
            await self._end(request)
            raise
        except Solo5Error as second:
            beside = not request.pause
            raise HostError(
                f"task {self._name} starts neither with the new image ({error.sentence}) nor with its earlier one "
                f"({second.sentence})" + (f": task {self._next} has its ports." if beside else "."),
                f"Mend the cause, and then: systemctl restart {self._name}"
                + (f" && {self._return_of_ports}" if beside else ""),
            ) from error

    async def _drain(self, task: Task, beside: Task, drain: float) -> None:
        """Wait for the end of the connections of the guest beside the task, or of the task."""
        loop = asyncio.get_running_loop()
        until = loop.time() + drain
        while True:
            if loop.time() >= until or not await self._connections(beside) or await self._task.is_over(task):
                return
            await asyncio.sleep(GUESTS_INTERVAL_S)

    async def _connections(self, run: Task) -> int:
        leases = run.reservation.leases if run.reservation else ()
        addresses = [address for lease in leases for address in lease.addresses]
        return await self._networks.connections(addresses) if addresses else 0

    # -- a reload ------------------------------------------------------------------------------------------------

    async def _reload_end(self) -> float | None:
        """Return until when the new guest must have the ports, of the loop's clock; None: there is no limit.

        A reload that PID 1 ends has failed, whatever becomes of the update.
        """
        left = await self._units.reload_time_left(self._service)
        if left is None:
            return None
        if left <= RELOAD_MARGIN_S:
            raise InvalidRequestError(
                f"TimeoutStartSec= of task {self._name} ends its reload in {left:.1f} s: expected more than "
                f"{RELOAD_MARGIN_S:g} s for the start of its new guest.",
                f"solo5ctl update {self._name} has no such limit.",
            )
        return asyncio.get_running_loop().time() + left - RELOAD_MARGIN_S

    @asynccontextmanager
    async def _in_time(self, until: float | None) -> AsyncGenerator[None, None]:
        """Cancel what is done here at the end of a reload; raises StartError then."""
        timeout = asyncio.timeout_at(until)
        try:
            async with timeout:
                yield
        except TimeoutError as error:
            if not timeout.expired():
                raise
            raise StartError(
                f"the new guest did not have the published ports before TimeoutStartSec= of task {self._name} ends its "
                "reload.",
                f"solo5ctl update {self._name} has no such limit.",
            ) from error

    # -- after a failure, or an interruption ---------------------------------------------------------------------

    @property
    def _return_of_ports(self) -> str:
        """Return the command that ends the guest beside the task, upon which the task has the ports again."""
        return f"solo5ctl rm --force {self._next}"

    async def _end(self, request: UpdateRequest) -> None:
        if not request.pause:
            await self.abandon()
        self._files.settle()

    async def abandon(self) -> None:
        """Move the ports back to the task, if it runs, and remove the guest beside it."""
        if await self._networks.reservation(self._name) is not None:
            await self._take_ports_back()
        await self._remove_next()

    async def _take_ports_back(self) -> None:
        """Move the ports back to the task. If the guest that had them has ended, a start of the task publishes them."""
        with suppress(NotFoundError):
            await self._networks.move_ports(self._next, self._name)
        held = await self._networks.reservation(self._name)
        if self._publishes and held is not None and not held.ports:
            self._files.step(f"task {self._name} is started again: task {self._next} has ended with its ports")
            await self._remove_next()
            with suppress(JobCanceledError):
                await self._units.restart(self._service, running=True)

    async def _remove_next(self) -> None:
        """Stop and remove the guest beside the task; its release deletes the flows that lead to it."""
        await self._runtime.discard(self._next)

    async def ports(self) -> Sequence[PortRequest]:
        """Return the published ports of the task, whichever guest has them."""
        for name in (self._name, self._next):
            held = await self._networks.reservation(name)
            if held is not None and held.ports:
                return held.ports
        return ()

    async def complete(self, condition: Ready | None, timeout_s: float, *, restart: bool = False) -> None:
        """End an update that was interrupted while the task was started with the new image.

        Args:
            restart: start it again, since its image was changed.

        Raises:
            StoppedError: it was stopped, and does not run.
            Solo5Error: the task is not ready. The guest beside it keeps the ports.
        """
        await self._task.forget_failed_start()
        await self._task.start(condition, timeout_s, again=restart)
        await self.abandon()
