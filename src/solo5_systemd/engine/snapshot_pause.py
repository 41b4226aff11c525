"""Freeze a task for a moment: it is thawed whatever happens, also to the process that has frozen it.

`units/solo5-thaw@.service` thaws it once a lock of this process is gone (docs/decisions/frozen-for-snapshots.md).
"""

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from solo5_systemd.base.errors import HostError, Solo5Error, TakenError, host_errors
from solo5_systemd.base.locks import LockedError, closing, lock_directory, lock_file, try_lock
from solo5_systemd.base.names import thaw_service
from solo5_systemd.base.paths import open_in_thread
from solo5_systemd.unit.state import UnitState

if TYPE_CHECKING:
    from solo5_systemd.bus.manager import Manager

PAUSES = Path("/run/solo5/pauses")
"""A directory that only root can open: another user's lock would keep a task frozen."""


async def while_frozen(
    units: "Manager",
    state: UnitState,
    act: Callable[[], None],
    before: Callable[[], None],
) -> float:
    """Call a function while no process of a task runs; a task that is frozen already stays so.

    A write(2) of the tender has been completed or has not begun: the freezer takes effect between system calls.

    Args:
        act: is called once the unit is frozen. It should take milliseconds.
        before: is called first, while the task runs.

    Returns:
        Seconds for which it was frozen; 0.0: it was frozen before.

    Raises:
        TakenError: another process has frozen it for a moment.
        HostError: it could not be frozen or thawed, or did not stay frozen during `act`.
        Exception: of `act` or `before`.
    """
    async with _locked(state.unit):
        await _to_its_end(before)
        now = await units.current(state)
        if now is not None and now.frozen:
            await _to_its_end(act)
            await _check(units, state)
            return 0.0
        guard = thaw_service(state.unit)
        await units.ensure_started(guard)
        try:
            begun = ended = time.monotonic()
            try:
                await units.freeze(state.unit)
                await _to_its_end(act)
                await _check(units, state)
            finally:
                ended = time.monotonic()  # the kernel thaws it at once, and PID 1 replies up to 10 ms later
                await _thaw(units, state)
            return ended - begun
        finally:
            await units.stop(guard)


async def _to_its_end(call: Callable[[], None]) -> None:
    """Call a function in a thread, and wait for its end even after a cancellation, which closes what it uses."""
    running = asyncio.ensure_future(asyncio.to_thread(call))
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait({running})
        raise


async def _thaw(units: "Manager", state: UnitState) -> None:
    """Thaw a unit; one that has ended needs none."""
    try:
        await units.thaw(state.unit)
    except Solo5Error:
        now = await units.current(state)
        if now is not None and not now.over and now.frozen:
            raise


async def _check(units: "Manager", state: UnitState) -> None:
    now = await units.current(state)
    if now is None or now.over or now.invocation != state.invocation:
        raise HostError(f"task {state.task} has ended meanwhile.", "Repeat the command.")
    if not now.frozen:
        raise HostError(
            f"task {state.task} was thawed meanwhile.",
            f"Another process thawed it, or it took too long: journalctl --unit {thaw_service(state.unit)}",
        )


@asynccontextmanager
async def _locked(unit: str) -> AsyncGenerator[None, None]:
    """Lock the file for which the unit waits that thaws a task."""
    path = PAUSES / unit
    try:
        with host_errors(f"{path} cannot be created"):
            PAUSES.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = await open_in_thread(lambda: _created(path))
    except LockedError as error:
        raise TakenError(f"{unit} is frozen for another snapshot.", "Repeat the command.") from error
    with closing(descriptor):
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _created(path: Path) -> int:
    """Create and lock a file, with the directory locked: no other pause removes it as a stale one in between."""
    with closing(lock_directory(path.parent)):
        for each in path.parent.iterdir():  # without a lock: of a process killed before PID 1 had started its guard
            with suppress(FileNotFoundError), each.open("rb") as file:
                if try_lock(file.fileno()):
                    each.unlink()
        descriptor = lock_file(path, timeout_s=0.0)
        if not os.fstat(descriptor).st_nlink:  # the end of a pause removed it between open(2) and flock(2)
            os.close(descriptor)
            raise LockedError(f"{path} was removed by another process.")
        return descriptor
