"""Other tasks of an allocation that hold a port which a start was refused."""

from collections.abc import Iterable
from contextlib import suppress

from solo5_systemd.errors import HostError, InvalidRequestError
from solo5_systemd.nomad import ports
from solo5_systemd.nomad.identity import name_of
from solo5_systemd.nomad.options import task_options
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.nomad.session import Session


async def conflict(
    session: Session, task: wire.TaskConfig, siblings: Iterable[wire.TaskConfig]
) -> InvalidRequestError | None:
    """Return the error for a port that a sibling holds: no retry gets it while the sibling runs. None: none does.

    Leases are read, not units: a sibling that is being started holds its ports before it has a unit.
    """
    wanted = tuple(ports.publish(task, task_options(task.msgpack_driver_config)))
    with suppress(HostError):  # the port is taken all the same
        engine = await session.engine()
        for sibling in siblings:
            held = await engine.reservation(name_of(sibling.id))
            error = ports.taken_by_sibling(task, wanted, held.ports if held else (), sibling.name)
            if error is not None:
                return error
    return None
