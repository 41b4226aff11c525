"""What our own services tell of tasks that run: for their owners, it becomes an event of each."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing

from solo5_systemd.errors import Solo5Error
from solo5_systemd.names import TaskName
from solo5_systemd.nomad.engine import Session
from solo5_systemd.nomad.events import messages
from solo5_systemd.nomad.events.messages import Announcement

AGAIN = 5.0
"""Seconds until a service is listened to again that could not be."""

_log = logging.getLogger(__name__)


class Bulletins:
    """Listens from `begin` on, for ever.

    Args:
        session: the machine.
        tell: tells an event of the task of this name, if it is one of ours.
        background: where listening goes on.
    """

    def __init__(
        self, session: Session, tell: Callable[[TaskName, Announcement], None], background: asyncio.TaskGroup
    ) -> None:
        self._session = session
        self._tell = tell
        self._background = background
        self._begun = False

    def begin(self) -> None:
        if not self._begun:
            self._begun = True
            self._background.create_task(_for_ever("solo5-networkd", self._tell_repairs))
            self._background.create_task(_for_ever("solo5-relay", self._tell_gaps))

    async def _tell_repairs(self) -> None:
        async with aclosing((await self._session.networks()).repairs()) as repairs:
            async for repair in repairs:
                for name in repair.tasks:
                    self._tell(name, messages.repaired(repair.what))

    async def _tell_gaps(self) -> None:
        async with aclosing((await self._session.relay()).gaps()) as gaps:
            async for gap in gaps:
                self._tell(gap.task, messages.gap(gap.lines))


async def _for_ever(service: str, listen: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            await listen()
        except Solo5Error as error:
            _log.warning("What %s has to tell of tasks cannot be heard for now: %s", service, error)
        await asyncio.sleep(AGAIN)
