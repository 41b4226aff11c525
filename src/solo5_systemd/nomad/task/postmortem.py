"""Ended tasks that are kept for a post-mortem (`gc { tasks = false }`): at most one for each task of an allocation.

Each is a loaded unit of PID 1, and a job can restart its task for ever. So a later run takes the place of an earlier
one, and the garbage collection removes those whose allocation Nomad has removed.
"""

from collections.abc import Collection

from solo5_systemd.engine.orphans import Kind
from solo5_systemd.engine.task import Phase
from solo5_systemd.names import TaskName
from solo5_systemd.nomad.engine import Session
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.nomad.workload.task_name import stem
from solo5_systemd.text import name_for_unit
from solo5_systemd.unit.state import UnitState


async def remove_earlier(session: Session, config: wire.TaskConfig, newest: TaskName, known: Collection[str]) -> None:
    """Remove the earlier ended runs of a task.

    Args:
        session: the engine.
        config: the task's, which names its allocation.
        newest: the run to keep.
        known: names of tasks that the driver answers for.

    Raises:
        HostError: PID 1 cannot be asked.
    """
    engine = await session.engine()
    kin = stem(newest)
    for name in await engine.names():
        if not name.startswith(kin) or name == newest or name in known:
            continue
        unit = await engine.unit(name)  # the stem is short: another allocation may have the same
        if unit is not None and unit.over and _of(unit, config):
            await engine.discard(name, over=True)


def _of(unit: UnitState, config: wire.TaskConfig) -> bool:
    fields = unit.log_fields
    return (fields.get("NOMAD_ALLOC_ID"), fields.get("NOMAD_TASK_NAME")) == (
        config.alloc_id,
        name_for_unit(config.name),
    )


async def remove_gone(session: Session) -> None:
    """Remove the ended tasks whose allocation is gone.

    Raises:
        HostError: PID 1 cannot be asked.
    """
    engine = await session.engine()
    gone = {orphan.subject for orphan in await engine.orphans() if orphan.kind is Kind.TASK}
    for task in await engine.tasks() if gone else ():
        if task.name in gone and task.phase is Phase.ENDED:
            await engine.discard(task.name, over=True)
