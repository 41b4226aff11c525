"""Remove what a task that is not running has left: its outcome, its network and its user."""

from typing import TYPE_CHECKING

from solo5_systemd.base.declared_units import forget_instance, units_of
from solo5_systemd.base.names import TaskName, outcome_target

if TYPE_CHECKING:
    from solo5_systemd.engine.backends import Backends


class Remover:
    """Removes tasks that are not running."""

    def __init__(self, backends: "Backends") -> None:
        self._units = backends.units
        self._networks = backends.networks
        self._users = backends.users

    async def discard(self, name: TaskName, *, keep: bool = False, unit: str = "") -> None:
        """Remove the outcome, the network and the user of a task.

        Args:
            name: of the task.
            keep: keep the outcome and the user.
            unit: its service or scope; empty: either.
        """
        if keep:  # a retained service can be started again by systemctl
            await self._release(name)
            await self._users.end_claim(name)
            return
        # Once the unit is gone, another start may use the name: it would lose what is removed here by the name.
        async with self._users.removal(name):
            await self.discard_locked(name, unit)

    async def discard_locked(self, name: TaskName, unit: str) -> None:
        """Remove all but the user; the caller has its lock."""
        await self._units.stop(outcome_target(name))
        await self._units.reset_failed([unit] if unit else units_of(name))
        await self._release(name)
        await self._networks.forget(name)
        forget_instance(name)

    async def _release(self, name: TaskName) -> None:
        """Release the network: solo5-networkd does so when a unit has ended; this waits, and covers one without a unit.

        The lease record is read first: the call activates the service.
        """
        if await self._networks.reservation(name) is not None:
            await self._networks.release(name)
