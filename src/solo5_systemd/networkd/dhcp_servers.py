"""The units of DHCP servers, solo5-dhcp@NETWORK.service: started, restarted and stopped by calls of PID 1."""

import asyncio
import os
from contextlib import suppress
from typing import Any

from solo5_systemd.base.dependencies import DHCP_SERVER
from solo5_systemd.base.errors import HostError
from solo5_systemd.base.names import INVOCATION_LINK, NetworkName, dhcp_service
from solo5_systemd.dbus.message_bus import MessageBus
from solo5_systemd.dbus.messages import MessageType
from solo5_systemd.networkd.task_units import call_pid1, exported

JOB_TIMEOUT_S = 15.0
"""For a start or stop of a server; longer than TimeoutStartSec= and TimeoutStopSec= of its unit."""

_JOB_INTERVAL_S = 0.005
"""Interval of the looks at a job. A start takes some 30 ms, once for all guests of a network."""

_PREFIX, _, _SUFFIX = f"{INVOCATION_LINK}{dhcp_service(NetworkName('@'))}".rpartition("@")


class DhcpServers:
    """The units of DHCP servers."""

    def __init__(self, bus: MessageBus) -> None:
        self._bus = bus

    def running(self) -> frozenset[NetworkName]:
        """Return the networks whose server runs."""
        return frozenset(
            NetworkName(name.removeprefix(_PREFIX).removesuffix(_SUFFIX))
            for name in exported()
            if name.startswith(_PREFIX) and name.endswith(_SUFFIX)
        )

    async def start(self, network: NetworkName) -> None:
        """Start or restart the server of a network; return when it receives messages.

        Raises:
            HostError: dnsmasq is missing, or the unit does not start.
        """
        if not os.access(DHCP_SERVER.name, os.X_OK):
            raise HostError(
                f"network {network} has dhcp = true or ra = true, but {DHCP_SERVER.name} is missing: expected it to be "
                "installed.",
                f"{DHCP_SERVER.advice.rstrip('.')}, or leave out both of network.{network} below /etc/solo5.",
            )
        unit = dhcp_service(network)
        # RestartUnit starts a unit that does not run.
        await self._call("RestartUnit", "ss", [unit, "replace"], network)
        if await self._state_after_job(unit) != "active":
            await self.stop(network)  # it would be started again and again
            raise HostError(
                f"the DHCP server of network {network} does not start: expected {unit} to be active.",
                f"`systemctl status {unit}` shows the reason.",
            )

    async def stop(self, network: NetworkName) -> None:
        """Stop the server of a network.

        Raises:
            HostError: PID 1 refuses it.
        """
        unit = dhcp_service(network)
        await self._call("StopUnit", "ss", [unit, "replace"], network)
        await self._state_after_job(unit)

    async def _state_after_job(self, unit: str) -> str:
        """Return the ActiveState= of a unit once it has no job; empty without one in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(JOB_TIMEOUT_S):
                while True:
                    ((row,),) = await self._call("ListUnitsByNames", "as", [[unit]], None)
                    if not row[7]:
                        return str(row[3])
                    await asyncio.sleep(_JOB_INTERVAL_S)
        return ""

    async def _call(self, member: str, signature: str, body: list[object], network: NetworkName | None) -> list[Any]:
        reply = await call_pid1(self._bus, member, signature, *body, timeout_s=JOB_TIMEOUT_S)
        if reply is not None and reply.message_type is MessageType.METHOD_RETURN:
            return list(reply.body)
        reason = "no reply" if reply is None else str(reply.body[0]) if reply.body else reply.error_name
        where = f" of network {network}" if network else ""
        raise HostError(
            f"{member} of the DHCP server{where} failed: {reason}.", "`systemctl list-jobs` shows all jobs."
        )
