"""DHCP servers: their units, solo5-dhcp@NETWORK.service, and their files below /run/solo5/network/dhcp.

    NETWORK/dnsmasq.conf    the configuration of the network's server
    NETWORK/hosts/TAP       the entry of a guest, from its attach until its release
    NETWORK/options/TAP     the guest's options

A server notices a new file by itself (inotify). It keeps the content of a file that was removed or changed, refuses an
entry with an address of an earlier one, and gives an address that it has leased to no other MAC address: see
`DhcpFiles.pop_start`.
"""

import asyncio
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from solo5_systemd.base.atomic_file import replace_file
from solo5_systemd.base.concurrency import SerialThread
from solo5_systemd.base.dependencies import DHCP_SERVER
from solo5_systemd.base.errors import HostError, host_errors
from solo5_systemd.base.names import INVOCATION_LINK, NetworkName, dhcp_service
from solo5_systemd.dbus.message_bus import MessageBus
from solo5_systemd.dbus.messages import MessageType
from solo5_systemd.network.dhcp import (
    HOSTS,
    OPTIONS,
    entry,
    is_served,
    options,
    server_config,
)
from solo5_systemd.network.model import Lease, LeaseRecord, Reservation
from solo5_systemd.networkd.task_units import call_pid1, exported
from solo5_systemd.settings.network_policy import Network

SEEN_AT = "/run/solo5-dhcp"
"""The path of all these files, which are below a directory that only root can enter, in the sandbox of a server."""

_CONFIG = "dnsmasq.conf"
_GONE = ".gone"


@dataclass
class _Entries:
    """The entries of a network.

    Attributes:
        present: the entry of each tap with files: its tap, MAC address and address, and its texts.
        known: texts that the server may have read, by each of these three.
        outdated: it may have read others than the present ones, which contradict them.
    """

    present: dict[str, tuple[Sequence[str], tuple[str, str]]] = field(default_factory=dict)
    known: dict[str, tuple[str, str]] = field(default_factory=dict)
    outdated: bool = False


class DhcpFiles:
    """The entries of guests on networks with DHCP. Not thread-safe. Raises HostError if a file cannot be written."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._entries: dict[NetworkName, _Entries] = {}

    def restore(self, records: Iterable[LeaseRecord], networks: Mapping[NetworkName, Network]) -> None:
        """Write the files of attached tasks, and remove all others; servers of an earlier process are outdated."""
        for record in records:
            self.add(record, networks)
        (self._directory / _GONE).unlink(missing_ok=True)
        for directory in [each for each in self._directory.glob("*") if each.is_dir()]:
            entries = self._entries.get(NetworkName(directory.name), _Entries())
            # With those of a writer that was killed, which begin with a dot.
            for file in (*(directory / HOSTS).glob("*"), *(directory / OPTIONS).glob("*")):
                if file.name not in entries.present:
                    self._remove(file)
            if not entries.present:
                self._forget(NetworkName(directory.name))
        for entries in self._entries.values():
            entries.outdated = True

    def add(self, record: LeaseRecord, networks: Mapping[NetworkName, Network]) -> None:
        """Write the files of a task's NICs, before their taps are made; idempotent."""
        for lease in record.reservation.leases:
            network = networks[lease.network]
            if is_served(network):
                self._add(network, lease, (entry(lease), options(lease, record.reservation.task, record.names)))

    def _add(self, network: Network, lease: Lease, texts: tuple[str, str]) -> None:
        directory = self._directory / network.name
        entries = self._entries.setdefault(network.name, _Entries())
        with host_errors(
            f"the files of the DHCP server of network {network.name} cannot be written",
            f"`df {self._directory.parent}` shows the free space.",
        ):
            if not entries.present:
                for each in (directory / HOSTS, directory / OPTIONS):
                    each.mkdir(parents=True, exist_ok=True)
                for each in (self._directory, directory, directory / HOSTS, directory / OPTIONS):
                    each.chmod(0o755)  # for the server's user; the directory above is closed to others
                replace_file(directory / _CONFIG, server_config(network, f"{SEEN_AT}/{network.name}"), mode=0o644)
            # The entry last: a server that has the guest's entry has its options.
            for kind, text in ((OPTIONS, texts[1]), (HOSTS, texts[0])):
                replace_file(directory / kind / lease.tap, text, mode=0o644)
        keys = lease.tap, lease.mac, str(lease.address)
        entries.present[lease.tap] = keys, texts
        for key in keys:
            entries.outdated |= entries.known.setdefault(key, texts) != texts

    def remove(self, reservation: Reservation, networks: Mapping[NetworkName, Network]) -> None:
        """Remove the files of a task's NICs; idempotent."""
        for lease in reservation.leases:
            if lease.network in self._entries:
                self._entries[lease.network].present.pop(lease.tap, None)
            # An interrupted release may have removed the network.
            if lease.network in networks and is_served(networks[lease.network]):
                for kind in (HOSTS, OPTIONS):
                    self._remove(self._directory / lease.network / kind / lease.tap)

    def _remove(self, file: Path) -> None:
        gone = self._directory / _GONE
        with suppress(FileNotFoundError):
            file.replace(gone)  # dnsmasq reads a file that is removed from its directory, and logs the error
            gone.unlink()

    def pop_start(self, network: NetworkName, *, runs: bool) -> bool:
        """Return whether the server of a network is to be started, or restarted: it then reads the present entries.

        `runs`: it does, and is to be restarted for entries that contradict those that it has read.
        """
        entries = self._entries.get(network, _Entries())
        if not entries.present or (runs and not entries.outdated):
            return False
        entries.outdated = False
        entries.known = {key: texts for keys, texts in entries.present.values() for key in keys}
        return True

    def needed(self) -> frozenset[NetworkName]:
        """Return the networks with a guest."""
        return frozenset(name for name, entries in self._entries.items() if entries.present)

    def forget_idle(self) -> None:
        """Remove what is left of the networks that had a guest, and have none."""
        for network in self._entries.keys() - self.needed():
            self._forget(network)

    @property
    def in_use(self) -> bool:
        """Whether a network has or had a guest with DHCP; safe to read in any thread."""
        return bool(self._entries)

    def _forget(self, network: NetworkName) -> None:
        self._entries.pop(network, None)
        directory = self._directory / network
        (directory / _CONFIG).unlink(missing_ok=True)
        for each in (directory / HOSTS, directory / OPTIONS, directory, self._directory):
            with suppress(OSError):  # not empty, or removed by another program
                each.rmdir()


_log = logging.getLogger(__name__)

SERVER_JOB_TIMEOUT_S = 15.0
"""For a start or stop of a server; longer than TimeoutStartSec= and TimeoutStopSec= of its unit."""

_JOB_INTERVAL_S = 0.005
"""Interval of the looks at a job. A start takes some 30 ms, once for all guests of a network."""

_PREFIX, _, _SUFFIX = f"{INVOCATION_LINK}{dhcp_service(NetworkName('@'))}".rpartition("@")


class DhcpServers:
    """The units of DHCP servers: started, restarted and stopped by calls of PID 1. `start` raises HostError."""

    def __init__(self, bus: MessageBus, files: DhcpFiles, writer: SerialThread) -> None:
        self._bus = bus
        self._files, self._writer = files, writer
        self._lock = asyncio.Lock()

    def running(self) -> frozenset[NetworkName]:
        """Return the networks whose server runs."""
        return frozenset(
            NetworkName(name.removeprefix(_PREFIX).removesuffix(_SUFFIX))
            for name in exported()
            if name.startswith(_PREFIX) and name.endswith(_SUFFIX)
        )

    async def start(self, networks: Iterable[NetworkName]) -> None:
        """Start or restart the servers of networks, as the entries of guests need them."""
        async with self._lock:
            for network in networks:
                if await self._writer.run(partial(self._files.pop_start, network, runs=network in self.running())):
                    await self._start(network)

    async def stop_idle(self) -> None:
        """Stop the servers of networks without a guest, also those that an earlier process of this service has left."""
        async with self._lock:
            try:
                for network in self.running() - await self._writer.run(self._files.needed):
                    await self._run_job("StopUnit", network)
                await self._writer.run(self._files.forget_idle)
            except HostError as error:  # repeated by `maintain`
                _log.error("%s", error)

    async def maintain(self) -> None:
        """Start, restart and stop all servers as the entries of guests need them; log a failure."""
        await self.stop_idle()
        for network in await self._writer.run(self._files.needed):
            try:
                await self.start([network])
            except HostError as error:
                _log.error("%s", error)

    async def _start(self, network: NetworkName) -> None:
        """Start or restart the server of a network; return when it receives messages."""
        if not os.access(DHCP_SERVER.name, os.X_OK):
            raise HostError(
                f"network {network} has dhcp = true or ra = true, but {DHCP_SERVER.name} is missing: expected it to be "
                "installed.",
                f"{DHCP_SERVER.advice.rstrip('.')}, or leave out both of network.{network} below /etc/solo5.",
            )
        # RestartUnit starts a unit that does not run.
        if await self._run_job("RestartUnit", network) != "active":
            await self._run_job("StopUnit", network)  # it would be started again and again
            unit = dhcp_service(network)
            raise HostError(
                f"the DHCP server of network {network} does not start: expected {unit} to be active.",
                f"`systemctl status {unit}` shows the reason.",
            )

    async def _run_job(self, member: str, network: NetworkName) -> str:
        """Return the ActiveState= of a server after a job; empty where the job has not ended in time."""
        unit = dhcp_service(network)
        await self._call(member, "ss", [unit, "replace"], network)
        with suppress(TimeoutError):
            async with asyncio.timeout(SERVER_JOB_TIMEOUT_S):
                while True:
                    ((row,),) = await self._call("ListUnitsByNames", "as", [[unit]], network)
                    if not row[7]:
                        return str(row[3])
                    await asyncio.sleep(_JOB_INTERVAL_S)
        return ""

    async def _call(self, member: str, signature: str, body: list[object], network: NetworkName) -> list[Any]:
        reply = await call_pid1(self._bus, member, signature, *body, timeout_s=SERVER_JOB_TIMEOUT_S)
        if reply is not None and reply.message_type is MessageType.METHOD_RETURN:
            return list(reply.body)
        reason = "no reply" if reply is None else str(reply.body[0]) if reply.body else reply.error_name
        raise HostError(
            f"{member} of the DHCP server of network {network} failed: {reason}.",
            "`systemctl list-jobs` shows all jobs.",
        )
