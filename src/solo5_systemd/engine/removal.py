"""Remove what a task that is not running has left: its outcome, its network and its user."""

from typing import TYPE_CHECKING

from solo5_systemd.base.declared_units import forget_instance, outcome_targets_of, units_of
from solo5_systemd.base.names import TaskName

if TYPE_CHECKING:
    from solo5_systemd.bus.network_client import Networkd
    from solo5_systemd.engine.backends import Backends


async def discard(backends: "Backends", name: TaskName, *, keep: bool = False, unit: str = "") -> None:
    """Remove the outcome, the network and the user of a task that does not run.

    Args:
        unit: its service or scope; empty: either.
    """
    if keep:  # a retained service can be started again by systemctl
        await _release(backends.networks, name)
        await backends.users.end_claim(name)
        return
    # Once the unit is gone, another start may use the name: it would lose what is removed here by the name.
    async with backends.users.removal(name):
        await discard_locked(backends, name, unit)


async def discard_locked(backends: "Backends", name: TaskName, unit: str) -> None:
    """Remove all but the user; the caller has its lock."""
    for target in outcome_targets_of(name):
        await backends.units.stop(target)
    await backends.units.reset_failed([unit] if unit else units_of(name))
    await _release(backends.networks, name)
    await backends.networks.forget(name)
    forget_instance(name)


async def _release(networks: "Networkd", name: TaskName) -> None:
    """Release the network: solo5-networkd does so when a unit has ended; this waits, and covers one without a unit.

    The lease record is read first: the call activates the service.
    """
    if await networks.reservation(name) is not None:
        await networks.release(name)
