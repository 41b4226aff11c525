"""Jobs of systemd: enqueue one, and wait for its result.

systemd may send JobRemoved of a job before the reply with the job's path. So the signal is matched before the call, and
results are stored while any call is in progress. Two calls may return the same job: systemd merges jobs.

PID 1 sends JobRemoved to the bus for each job with a client on it, and for all jobs while any client of the bus has
called Subscribe (logind does; this package does not). So the match rule lasts while there are jobs, and some seconds
longer: jobs of other programs wake an idle process for nothing.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from solo5_systemd.base.errors import HostError
from solo5_systemd.bus.connection import Connection
from solo5_systemd.bus.peers import MANAGER, MANAGER_PATH, SYSTEMD

JOB_TIMEOUT_S = 60.0
"""Longer than TimeoutStartSec= of a task (30 s) and of its network unit: systemd's own timeout, with its reason, comes
first."""

LINGER_S = 5.0
"""Time that the match rule is kept after a job: a busy process does not remove and add it for each."""

_REMOVED = (SYSTEMD, MANAGER, "JobRemoved")


class Jobs:
    """The jobs that are enqueued over one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._waiting: dict[str, asyncio.Future[str | None]] = {}  # None: the connection was lost
        self._early: dict[str, str] = {}
        self._dispatching = 0

    async def run(self, member: str, signature: str, body: Sequence[Any], unix_fds: Sequence[int] = ()) -> str:
        """Call a Manager method that returns a job, and wait for the job's result (`done`, `failed`, …).

        Raises:
            RemoteError: systemd refused the call.
            HostError: the job timed out, or the connection was lost.
        """
        self._connection.listen(_REMOVED, self._received)
        try:
            self._dispatching += 1
            try:
                call = (MANAGER_PATH, MANAGER, member, signature, body, unix_fds)
                [job] = await self._connection.call_systemd(*call)
                early = self._early.get(job)
            finally:
                self._dispatching -= 1
                # No reply is outstanding, so no stored result can be needed.
                if not self._dispatching:
                    self._early.clear()
            return early or await self._result(job, member)
        finally:
            asyncio.get_running_loop().call_later(LINGER_S, self._connection.ignore, _REMOVED, self._received)

    async def _result(self, job: str, member: str) -> str:
        # One future per job: systemd merges jobs, so two calls can wait for the same one.
        future = self._waiting.setdefault(job, asyncio.get_running_loop().create_future())
        try:
            async with asyncio.timeout(JOB_TIMEOUT_S):
                result = await asyncio.shield(future)
        except TimeoutError as error:
            self._waiting.pop(job, None)
            raise HostError(
                f"systemd did not finish {member} within {JOB_TIMEOUT_S:.0f} seconds.", "See: systemctl list-jobs"
            ) from error
        if result is None:
            raise HostError(
                f"the connection to the system bus broke during {member}.",
                "Check that dbus is running: systemctl status dbus",
            )
        return result

    def _received(self, body: list[Any] | None) -> None:
        if body is None:
            while self._waiting:
                self._waiting.popitem()[1].set_result(None)
            return
        _, job, _, result = body
        if self._dispatching:
            self._early[job] = result
        if job in self._waiting:
            self._waiting.pop(job).set_result(result)
