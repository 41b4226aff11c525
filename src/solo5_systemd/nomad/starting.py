"""The start of a task: its console connected, its unit started, or found there; and nothing left where that fails."""

import asyncio
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from solo5_systemd.errors import HostError, NoSuchTaskError, TakenError
from solo5_systemd.names import TaskName, task_scope, task_service
from solo5_systemd.nomad import consoles
from solo5_systemd.nomad.choices import Logging
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.nomad.scopes import Scopes
from solo5_systemd.nomad.session import Session
from solo5_systemd.task import Started, Task
from solo5_systemd.workload import UnitKind, Workload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from solo5_systemd.runtime import Runtime

PATIENCE = 120.0
"""Seconds for a whole start; each of its steps has less, and says what was slow."""


class Starter:
    """Starts units.

    Args:
        session: the engine.
        scopes: where children are kept that become tenders.
    """

    def __init__(self, session: Session, scopes: Scopes) -> None:
        self._session = session
        self._scopes = scopes

    async def start(
        self, config: wire.TaskConfig, workload: Workload, images: "Sequence[str]", wanted: Logging
    ) -> Started:
        """Start a task's unit.

        Args:
            config: Nomad's.
            workload: what to run.
            images: where its image may be, the first that exists being meant.
            wanted: where its console goes.

        Raises:
            Solo5Error: it did not start in time, and nothing of it is left.
        """
        try:
            async with asyncio.timeout(PATIENCE):
                workload = replace(workload, image=await asyncio.to_thread(_first_there, images))
                return await self._start(config, workload, wanted)
        except TimeoutError as error:
            raise HostError(f"task {config.name} did not start within {PATIENCE:.0f} seconds.") from error

    async def _start(self, config: wire.TaskConfig, workload: Workload, wanted: Logging) -> Started:
        engine = await self._session.engine()
        name = workload.name
        unit = task_scope(name) if workload.kind is UnitKind.SCOPE else task_service(name)
        try:
            await consoles.connect(self._session, config, name, unit, _now(), wanted)
            return await self._begin(engine, workload)
        except BaseException:
            await asyncio.shield(consoles.let_go(self._session, name, wanted))
            raise

    async def _begin(self, engine: "Runtime", workload: Workload) -> Started:
        """Start the unit, or find it there.

        An id is used for one start only: what has its name already is this very task, started by a driver that died
        before it could answer.
        """
        try:
            if workload.kind is UnitKind.SERVICE:
                return await engine.start(workload)
            await self._scopes.start(engine, self._session.settings(), workload)
        except TakenError as error:  # of the name, or of a port or disk
            try:
                return _started(await engine.task(workload.name))
            except NoSuchTaskError:
                raise error from None
        try:
            return _started(await engine.task(workload.name))
        except NoSuchTaskError:
            return _ended_scope(workload.name)


def _started(task: Task) -> Started:
    return Started(
        name=task.name,
        unit=task.unit,
        invocation=task.invocation,
        pid=task.pid,
        started=task.started or _now(),  # of a scope systemd does not say
        control_group=task.control_group,
        reservation=task.reservation,
    )


def _ended_scope(name: TaskName) -> Started:
    """Of a tender that has ended already: nothing keeps a scope, but its end is its parent's to tell."""
    return Started(
        name=name,
        unit=task_scope(name),
        invocation="",
        pid=0,
        started=_now(),
        control_group="",
        reservation=None,
    )


def _first_there(candidates: "Sequence[str]") -> str:
    return next((path for path in candidates if os.path.lexists(path)), candidates[0])


def _now() -> int:
    """Microseconds since the epoch."""
    return time.time_ns() // 1000
