"""Retained tasks (`gc { tasks = false }`): at most one ended run for each task of an allocation.

Each is a loaded unit in PID 1, and a job may restart its task any number of times. So each run replaces the earlier
one, and garbage collection removes those whose allocation Nomad has removed.
"""

from collections.abc import Collection

from solo5_systemd.engine.orphans import Kind
from solo5_systemd.engine.task import Phase
from solo5_systemd.names import TaskName
from solo5_systemd.nomad.engine import EngineSession
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.nomad.workload.convert import stem
from solo5_systemd.sanitize import name_for_unit
from solo5_systemd.unit.state import UnitState


async def remove_earlier(
    session: EngineSession, config: wire.TaskConfig, newest: TaskName, claimed: Collection[str]
) -> None:
    """Remove the earlier ended runs of a task.

    Args:
        session: the engine.
        config: the task's configuration, which names its allocation.
        newest: the run to keep.
        claimed: names of the driver's tasks, which are kept, too.

    Raises:
        HostError: PID 1 is not reachable.
    """
    engine = await session.engine()
    prefix = stem(newest)
    for name in await engine.names():
        if not name.startswith(prefix) or name == newest or name in claimed:
            continue
        unit = await engine.backends.units.state(name)  # the prefix is short: another allocation may have the same
        if unit is not None and unit.over and _is_of(unit, config):
            await engine.discard(name, over=True)


def _is_of(unit: UnitState, config: wire.TaskConfig) -> bool:
    fields = unit.log_fields
    return (fields.get("NOMAD_ALLOC_ID"), fields.get("NOMAD_TASK_NAME")) == (
        config.alloc_id,
        name_for_unit(config.name),
    )


async def remove_orphaned(session: EngineSession) -> None:
    """Remove the ended tasks whose allocation Nomad has removed.

    Raises:
        HostError: PID 1 is not reachable.
    """
    engine = await session.engine()
    orphaned = {orphan.subject for orphan in await engine.gc.orphans() if orphan.kind is Kind.TASK}
    for task in await engine.tasks() if orphaned else ():
        if task.name in orphaned and task.phase is Phase.ENDED:
            await engine.discard(task.name, over=True)
